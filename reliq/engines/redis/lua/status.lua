-- status: reads a queue's counts and its ledger at one instant.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] dead (ZSET)
-- KEYS[6] stats (HASH)
-- KEYS[7] meta (HASH)
-- KEYS[8] consumers (HASH)
--
-- ARGV: none
--
-- Returns {1 exists or 0, ready, delayed, unacked, dead, messages, consumers,
--   {counter, value, ...}, arguments, 1 paused or 0}
-- Redis 6.2 or newer.
local messages, ready, delayed, unacked_index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, stats, meta, consumers = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

return {
  redis.call('EXISTS', meta),
  redis.call('ZCARD', ready),
  redis.call('ZCARD', delayed),
  redis.call('ZCARD', unacked_index),
  redis.call('ZCARD', dead),
  redis.call('HLEN', messages),
  redis.call('HLEN', consumers),
  redis.call('HGETALL', stats),
  redis.call('HGET', meta, 'arguments') or '',
  redis.call('HEXISTS', meta, 'paused'),
}
