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

-- use: add, intact, lease_of, trim_dead, keep_events, note_failures, permitted

intact({messages, unacked, deliveries, dead_info, stats}, {unacked_index, dead, job_events})
permitted(unacked, dead)
-- clock: now
local refused, died, noted = {}, 0, {}
for i = 4, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', unacked, tag)
  local held, _, _, owner = lease_of(record)
  if held == token then
    local failed = redis.call('HGET', deliveries, tag) or '0'
    redis.call('ZREM', unacked_index, tag)
    redis.call('ZADD', dead, now, tag)
    redis.call('HSET', dead_info, tag, reason .. '|' .. failed .. '|' .. owner .. '|' .. err)
    redis.call('HDEL', unacked, tag)
    keep_events({tag}, 'dead', reason, err)
    noted[#noted + 1] = table.concat({tag, string.format('%.0f', now), reason, failed, owner}, '|')
    died = died + 1
  else
    refused[#refused + 1] = tag
  end
end
note_failures(noted)
if died > 0 then
  add(stats, 'dead_lettered', died)
  add(stats, 'dead:' .. reason, died)
  trim_dead()
end
return refused
