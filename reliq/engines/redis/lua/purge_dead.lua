-- purge_dead: removes dead letters permanently.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns the number of removed dead letters; those in a move that began less than a day ago
--   are kept.
-- keys: messages, deliveries, dead, dead_info, stats, moves, guard

-- use: remove, intact, is_moving, permitted

intact({messages, deliveries, dead_info, stats}, {dead})
permitted(messages, dead)
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
