-- moved: takes messages out that are stored elsewhere now.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] deliveries (HASH)
-- KEYS[3] dead (ZSET)
-- KEYS[4] dead_info (HASH)
-- KEYS[5] unacked_index (ZSET)
-- KEYS[6] unacked (HASH)
-- KEYS[7] stats (HASH)
-- KEYS[8] moves (HASH)
-- KEYS[9] guard (STRING)
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns how many were taken out: what another took out before is not counted.
-- Redis 6.2 or newer.
local messages, deliveries, dead = KEYS[1], KEYS[2], KEYS[3]
local dead_info, unacked_index, unacked = KEYS[4], KEYS[5], KEYS[6]
local stats, moves = KEYS[7], KEYS[8]

-- use: add, remove, intact

intact({messages, deliveries, dead_info, unacked, stats}, {dead, unacked_index})
local gone = {}
for _, tag in ipairs(ARGV) do
  local here = redis.call('HDEL', moves, tag) == 1
  if here and redis.call('ZREM', dead, tag) + redis.call('ZREM', unacked_index, tag) > 0 then
    gone[#gone + 1] = tag
  end
end
if #gone > 0 then
  redis.call('HDEL', unacked, unpack(gone))
  remove(gone, 'moved')
end
return #gone
