-- purge_dead: removes dead letters for good.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns how many were removed; what is no dead letter, or on its way to another queue
--   since less than a day, stays.
-- keys: messages, deliveries, dead, dead_info, stats, moves, guard
-- limits: DAY_US

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
