-- heartbeat: records that a consumer is alive, and returns queues that need a check.
--
-- ARGV[1] id (of the consumer)
-- ARGV[2] ttl (ms from now for which it counts as alive)
-- ARGV[3] again (ms until a returned queue is due again)
-- ARGV[4..] field, value (pairs for the record: host, pid, client_id, run_id, queues ...)
--
-- Returns {names of queues to check now, 1 when more are due or 0,
--   names of queues whose dead letters are routed on,
--   1 when it was not in the register: new, considered dead, or the register was lost}
-- keys: consumers, consumer, queues, dead_letter_routed, stored_format, guard
-- limits: FORMAT, FORGOTTEN_MS, DUE_AT_ONCE, A_QUEUE_MS, ROUTED_AT_ONCE, MINUTE_MS
local id, ttl, again = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- clock: now
-- begin: ZREM consumers
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('HSET', consumer, 'seen', now, 'ttl', ttl, unpack(ARGV, 4))
local new = redis.call('ZADD', consumers, now, id)
-- Living consumers remove dead ones, from their queues first. The record of a dead consumer
-- remains for ten days, in case no consumer lives.
redis.call('PEXPIRE', consumer, FORGOTTEN_MS)
redis.call('PEXPIRE', consumers, FORGOTTEN_MS)
-- List a queue in use, even if a process died while it declared or deleted the queue. A later
-- check determines whether it expires.
for place = 4, #ARGV, 2 do
  if ARGV[place] == 'queues' then
    for queue in string.gmatch(ARGV[place + 1], '[^\n]+') do
      redis.call('ZADD', queues, 'NX', 1, queue)
    end
  end
end
-- One consumer at a time checks a queue; all together check at most 500 queues a second.
local due = redis.call('ZRANGEBYSCORE', queues, '-inf', now, 'LIMIT', 0, DUE_AT_ONCE)
again = math.max(again, A_QUEUE_MS * redis.call('ZCARD', queues))
if #due == 0 then -- a time far ahead was recorded before the clock was set back
  due = redis.call('ZRANGEBYSCORE', queues, now + math.max(4 * again, MINUTE_MS), '+inf', 'LIMIT',
    0, DUE_AT_ONCE)
end
for _, queue in ipairs(due) do
  redis.call('ZADD', queues, 'XX', now + again, queue)
end
return {due, #due == DUE_AT_ONCE and 1 or 0,
  redis.call('ZRANGE', dead_letter_routed, 0, ROUTED_AT_ONCE - 1), new}
