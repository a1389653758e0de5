-- moved: removes messages that the target of a move has stored.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns the number of messages removed by this call.
-- keys: messages, deliveries, dead, dead_info, unacked_index, unacked, stats, moves, guard

-- use: remove, intact

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
