-- hand_back: returns undelivered messages that were taken with no_ack to their old place.
--
-- ARGV[1..] tag, score, expires, count, envelope (five for each message, as reserve returned
--   them: expires in ms or "", count of failed deliveries or -1)
--
-- Returns the number of restored messages: 0 for a deleted queue, without existing messages.
-- keys: messages, ready, deliveries, expiry, stats, meta, guard

-- use: add, notify, intact

local flags = redis.call('HMGET', meta, 'exists', 'paused', 'max_bytes')
local back, bytes = 0, 0
if not flags[1] then
  return 0
end
intact({messages, deliveries, stats}, {ready, expiry})
-- begin: HDEL messages
for i = 1, #ARGV, 5 do
  local tag, score, expires, count, envelope = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if redis.call('HSETNX', messages, tag, envelope) == 1 then
    redis.call('ZADD', ready, score, tag)
    if expires ~= '' then
      redis.call('ZADD', expiry, expires, tag)
    end
    if count ~= '-1' then
      redis.call('HSET', deliveries, tag, count)
    end
    back = back + 1
    bytes = bytes + #envelope
  end
end
if back > 0 then
  add(stats, 'acked', -back)
  if flags[3] then
    add(stats, 'waiting_bytes', bytes)
  end
  if not flags[2] then
    notify()
  end
end
return back
