-- purge_dead: removes dead letters for good.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] deliveries (HASH)
-- KEYS[3] dead (ZSET)
-- KEYS[4] dead_info (HASH)
-- KEYS[5] stats (HASH)
-- KEYS[6] moves (HASH)
-- KEYS[7] guard (STRING)
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns how many were removed; what is no dead letter, or on its way to another queue
--   since less than a day, stays.
-- Redis 6.2 or newer.
-- limits: DAY_US
local messages, deliveries, dead = KEYS[1], KEYS[2], KEYS[3]
local dead_info, stats, moves = KEYS[4], KEYS[5], KEYS[6]

-- use: add, remove, intact, is_moving

intact({messages, deliveries, dead_info, stats}, {dead})
local gone = {}
local clock = redis.call('TIME')
for _, tag in ipairs(ARGV) do
  local moving = is_moving(redis.call('HGET', moves, tag), clock)
  if not moving and redis.call('ZREM', dead, tag) == 1 then
    redis.call('HDEL', moves, tag)
    gone[#gone + 1] = tag
  end
end
if #gone > 0 then
  remove(gone, 'purged')
end
return #gone
