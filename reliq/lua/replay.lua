-- replay: makes dead letters ready in their own queue, with a delivery count of 0.
--
-- They follow the messages that are ready at their rank, and have no TTL.
--
-- ARGV[1..] tag (delivery tags of dead letters)
--
-- Returns the tags that were replayed. Others are no longer dead letters, or in a move that
--   began less than a day ago.
-- keys: messages, ready, delayed, deliveries, dead_info, stats, meta, moves, job_events, guard

-- use: add, notify, count_bytes, unbury, intact, promote, idle_dead, keep_events
-- use: permitted

intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, job_events})
permitted(stats, ready)
local replayed = idle_dead(ARGV)
if #replayed == 0 then
  return replayed
end
unbury(replayed)
redis.call('HDEL', moves, unpack(replayed))
keep_events(replayed, 'waits', '', '')
promote(replayed)
count_bytes(replayed, 1)
add(stats, 'replayed', #replayed)
notify()
return replayed
