-- moved: removes messages that the target of a move has stored.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns the number of messages removed by this call.
-- keys: messages, deliveries, dead, dead_info, unacked_index, unacked, stats, moves, guard

-- use: end_leases, unbury, leave, intact

intact({messages, deliveries, dead_info, unacked, stats}, {dead, unacked_index})
local gone = {}
for _, tag in ipairs(ARGV) do
  local left = redis.call('HDEL', moves, tag) == 1
  if left and (redis.call('ZSCORE', dead, tag) or redis.call('ZSCORE', unacked_index, tag)) then
    gone[#gone + 1] = tag
  end
end
if #gone == 0 then
  return 0
end
end_leases(gone)
unbury(gone)
return leave(gone, 'moved')
