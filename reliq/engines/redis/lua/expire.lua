-- expire: removes messages that have waited beyond their time to live, the oldest first.
--
-- For queues from which nobody reserves: reserve does the same before it gives anything out.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] expiry (ZSET)
-- KEYS[6] dead (ZSET)
-- KEYS[7] dead_info (HASH)
-- KEYS[8] stats (HASH)
-- KEYS[9] meta (HASH)
-- KEYS[10] job_events (ZSET)
-- KEYS[11] guard (STRING)
--
-- ARGV[1] batch (messages at most)
--
-- Returns 1 when more have expired than one step removes, else 0.
-- Redis 6.2 or newer.
-- limits: JOB_MARK
local messages, ready, delayed, deliveries, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead, dead_info, stats, meta, job_events = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local batch = tonumber(ARGV[1])

-- use: intact, add, keep_expired, remove_expired, without_body, keep_events, expire, bytes_of
-- use: count_down_bytes

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, batch)
if #overdue == 0 then
  return 0
end
intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, dead, job_events})
local flags = redis.call('HMGET', meta, 'dead_expired', 'max_bytes')
local bytes = flags[2] and bytes_of(overdue)
expire(overdue, now, flags[1])
if bytes then
  count_down_bytes(bytes)
end
return #overdue == batch and 1 or 0
