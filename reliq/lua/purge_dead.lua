-- purge_dead: removes dead letters permanently.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns the number of removed dead letters; those in a move that began less than a day ago
--   are kept.
-- keys: messages, deliveries, dead, dead_info, stats, moves, guard

-- use: leave, unbury, intact, idle_dead, permitted

intact({messages, deliveries, dead_info, stats}, {dead})
permitted(messages, dead)
local idle = idle_dead(ARGV)
if #idle == 0 then
  return 0
end
unbury(idle)
redis.call('HDEL', moves, unpack(idle))
return leave(idle, 'purged')
