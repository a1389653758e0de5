-- release: gives leased messages back to their old place in the queue.
--
-- KEYS[1] ready (ZSET)
-- KEYS[2] unacked_index (ZSET)
-- KEYS[3] unacked (HASH)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] expiry (ZSET)
-- KEYS[6] bell (LIST)
-- KEYS[7] stats (HASH)
--
-- ARGV[1] how ("buffered": was never given to the application;
--         "returned": in order, not counted; "requeued": counted as a failed delivery)
-- ARGV[2..] tag, token (pairs: delivery tag, lease token)
--
-- Returns the tags whose lease another consumer holds now, or that are gone; they stay.
-- Redis 6.2 or newer.
local ready, unacked_index, unacked, deliveries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local expiry, bell, stats = KEYS[5], KEYS[6], KEYS[7]
local how = ARGV[1]

local refused, returned = {}, 0
for i = 2, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', unacked, tag)
  local held, score, expires
  if record then
    held, score, expires = string.match(record, '^(%d+)|([^|]*)|([^|]*)|')
  end
  if held == token then
    -- Removing first keeps this possible when memory is full: Redis refuses a
    -- growing command only as the first write of a script.
    redis.call('ZREM', unacked_index, tag)
    redis.call('ZADD', ready, score, tag)
    redis.call('HDEL', unacked, tag)
    if expires ~= '' then
      redis.call('ZADD', expiry, expires, tag)
    end
    if how == 'requeued' then
      redis.call('HINCRBY', deliveries, tag, 1)
    elseif how == 'returned' then
      redis.call('HSETNX', deliveries, tag, 0)
    end
    returned = returned + 1
  else
    refused[#refused + 1] = tag
  end
end
if returned > 0 then
  redis.call('HINCRBY', stats, how, returned)
  if redis.call('LLEN', bell) == 0 then
    redis.call('RPUSH', bell, '1')
  end
end
return refused
