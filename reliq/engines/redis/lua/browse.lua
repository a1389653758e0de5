-- browse: reads messages of one place, in its order, without touching them.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] unacked (HASH)
-- KEYS[6] deliveries (HASH)
--
-- ARGV[1] place (ready, delayed or unacked)
-- ARGV[2] skip (messages to pass over)
-- ARGV[3] count (messages at most)
--
-- Returns {tag, score, envelope or false, lease record or false,
--   failed deliveries or false, ...}
-- Redis 6.2 or newer.
local messages, ready, delayed, unacked_index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unacked, deliveries = KEYS[5], KEYS[6]
local place, skip, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local source = ready
if place == 'delayed' then
  source = delayed
elseif place == 'unacked' then
  source = unacked_index
end
local found = redis.call('ZRANGE', source, skip, skip + count - 1, 'WITHSCORES')
local result = {}
for i = 1, #found, 2 do
  local tag = found[i]
  result[#result + 1] = tag
  result[#result + 1] = found[i + 1]
  result[#result + 1] = redis.call('HGET', messages, tag)
  result[#result + 1] = redis.call('HGET', unacked, tag)
  result[#result + 1] = redis.call('HGET', deliveries, tag)
end
return result
