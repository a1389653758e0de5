-- expire: removes messages that have waited beyond their time to live, the oldest first.
--
-- For queues from which nobody reserves: reserve does the same before it gives anything out.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] expiry (ZSET)
-- KEYS[6] dead (ZSET)
-- KEYS[7] dead_info (HASH)
-- KEYS[8] stats (HASH)
-- KEYS[9] meta (HASH)
--
-- ARGV[1] batch (messages at most)
--
-- Returns 1 when more have expired than one step removes, else 0.
-- Redis 6.2 or newer.
local messages, ready, delayed, deliveries, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead, dead_info, stats, meta = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local batch = tonumber(ARGV[1])
-- use: count, whole, intact

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, batch)
if #overdue == 0 then
  return 0
end
-- A key that holds something else is told before the first write.
intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, dead})
-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', expiry, unpack(overdue))
redis.call('ZREM', ready, unpack(overdue))
redis.call('ZREM', delayed, unpack(overdue))
local flags = redis.call('HMGET', meta, 'dead_expired', 'max_bytes')
if flags[2] then
  local bytes = whole(redis.call('HGET', stats, 'waiting_bytes')) or 0
  for _, tag in ipairs(overdue) do
    bytes = bytes - redis.call('HSTRLEN', messages, tag)
  end
  -- What waited before the queue was declared with the limit was never counted.
  redis.call('HSET', stats, 'waiting_bytes', math.max(bytes, 0))
end
if flags[1] then
  local failed = redis.call('HMGET', deliveries, unpack(overdue))
  for i, tag in ipairs(overdue) do
    redis.call('ZADD', dead, now, tag)
    redis.call('HSET', dead_info, tag, 'expired|' .. (failed[i] or 0) .. '||')
  end
  count('dead_lettered', #overdue)
  count('dead:expired', #overdue)
else
  redis.call('HDEL', messages, unpack(overdue))
  redis.call('HDEL', deliveries, unpack(overdue))
  count('expired', #overdue)
end
return #overdue == batch and 1 or 0
