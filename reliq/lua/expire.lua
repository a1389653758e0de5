-- expire: removes expired messages, oldest first.
--
-- For queues without consumers: reserve does the same before it leases messages.
--
-- ARGV[1] dead_letter_max (messages)
--
-- Returns 1 when more messages have expired than one step removes, else 0.
-- keys: messages, ready, delayed, deliveries, expiry, dead, dead_info, stats, meta, job_events
-- keys: guard
-- limits: BATCH
local dead_letter_max = tonumber(ARGV[1])

-- clock: now
-- use: intact, expire, permitted

local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, BATCH)
if #overdue == 0 then
  return 0
end
intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, dead, job_events})
permitted(stats, dead)
expire(overdue, redis.call('HEXISTS', meta, 'dead_expired') == 1)
return #overdue == BATCH and 1 or 0
