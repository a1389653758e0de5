-- dead_letter: turns leased messages into dead letters.
--
-- ARGV[1] reason ("rejected", "undecodable", ...)
-- ARGV[2] error (text; may be empty)
-- ARGV[3] dead_letter_max (messages; beyond it, the oldest are removed and counted as dropped)
-- ARGV[4..] tag, token (pairs: delivery tag, lease token)
--
-- Returns the tags without this lease (leased again, or gone), which are unchanged.
-- keys: messages, unacked_index, unacked, deliveries, dead, dead_info, stats, job_events, guard
local reason, err, dead_letter_max = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- clock: now
-- use: intact, held_leases, tags_of, note_failures, bury, end_leases, permitted

intact({messages, unacked, deliveries, dead_info, stats}, {unacked_index, dead, job_events})
permitted(unacked, dead)
local held, refused = held_leases(4)
if #held > 0 then
  note_failures(held, reason)
  end_leases(tags_of(held))
  bury(held, reason, err)
end
return refused
