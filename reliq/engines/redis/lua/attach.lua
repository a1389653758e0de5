-- attach: notes that a consumer begins or ends to consume from a queue.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] unacked (HASH)
-- KEYS[6] deliveries (HASH)
-- KEYS[7] expiry (ZSET)
-- KEYS[8] dead (ZSET)
-- KEYS[9] dead_info (HASH)
-- KEYS[10] bell (LIST)
-- KEYS[11] stats (HASH)
-- KEYS[12] meta (HASH)
-- KEYS[13] consumers (HASH)
-- KEYS[14] unacked_mutex (STRING)
-- KEYS[15] moves (HASH)
--
-- ARGV[1] consumer (id)
-- ARGV[2] subscriptions (how many it has on the queue now; 0: it left, or is gone)
--
-- Returns 1, or 0 when the last one left and the queue was deleted (auto_delete).
-- Redis 6.2 or newer.
local messages, ready, delayed, unacked_index, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, expiry, dead, dead_info = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local bell, stats, meta, consumers, mutex = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local moves = KEYS[15]
local consumer, subscriptions = ARGV[1], tonumber(ARGV[2])

-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', consumers, '')
if subscriptions > 0 then
  redis.call('HSET', consumers, consumer, subscriptions)
  return 1
end
-- Its marks go with it, but for one that its ended leases are still to be judged by.
for _, field in ipairs(redis.call('HKEYS', meta)) do
  if string.sub(field, 1, 9 + #consumer) == 'suspect:' .. consumer .. '/' then
    local record = redis.call('HGET', unacked, redis.call('HGET', meta, field))
    local owner = record and string.match(record, '^%d+|[^|]*|[^|]*|(.*)$')
    if 'suspect:' .. (owner or '') ~= field then
      redis.call('HDEL', meta, field)
    end
  end
end
local known = redis.call('HDEL', consumers, consumer) == 1
if known and redis.call('HLEN', consumers) == 0 and redis.call('EXISTS', meta) == 1 then
  if redis.call('HGET', meta, 'auto_delete') == '1' then
    redis.call('UNLINK', messages, ready, delayed, unacked_index, unacked, deliveries, expiry,
      dead, dead_info, bell, stats, meta, consumers, mutex, moves)
    return 0
  end
  local clock = redis.call('TIME')
  redis.call('HSET', meta, 'used_at', clock[1] * 1000 + math.floor(clock[2] / 1000))
end
return 1
