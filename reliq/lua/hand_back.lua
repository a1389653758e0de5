-- hand_back: returns undelivered messages that were taken with no_ack to their old place.
--
-- ARGV[1..] tag, score, expires, count, envelope (five for each message, as reserve returned
--   them: expires in ms or "", count of failed deliveries or -1)
--
-- Returns the number of restored messages: 0 for a deleted queue, without existing messages.
-- keys: messages, ready, deliveries, expiry, stats, meta, guard

-- use: add, whole, notify, intact, wait, count_failures

local flags = redis.call('HMGET', meta, 'exists', 'paused')
if not flags[1] then
  return 0
end
intact({messages, deliveries, stats}, {ready, expiry})
-- begin: HDEL messages
local back = {}
for i = 1, #ARGV, 5 do
  if redis.call('HSETNX', messages, ARGV[i], ARGV[i + 4]) == 1 then
    back[#back + 1] = {tag = ARGV[i], score = ARGV[i + 1], expires = ARGV[i + 2],
      failed = whole(ARGV[i + 3])}
  end
end
if #back > 0 then
  wait(back)
  count_failures(back)
  add(stats, 'acked', -#back)
  if not flags[2] then
    notify()
  end
end
return #back
