-- expire: removes expired messages, oldest first.
--
-- For queues without consumers: reserve does the same before it leases messages.
--
-- Returns 1 when more messages have expired than one step removes, else 0.
-- keys: messages, ready, delayed, deliveries, expiry, dead, dead_info, stats, meta, job_events
-- keys: guard
-- limits: BATCH

-- use: intact, expire, bytes_of, count_down_bytes, permitted

-- clock: now
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, BATCH)
if #overdue == 0 then
  return 0
end
intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, dead, job_events})
permitted(stats, dead)
local flags = redis.call('HMGET', meta, 'dead_expired', 'max_bytes')
local bytes = flags[2] and bytes_of(overdue)
expire(overdue, now, flags[1])
if bytes then
  count_down_bytes(bytes)
end
return #overdue == BATCH and 1 or 0
