-- heartbeat: a consumer says that it lives, and learns which queues need somebody.
--
-- ARGV[1] id (of the consumer)
-- ARGV[2] ttl (ms that it counts as living from now)
-- ARGV[3] again (ms until somebody looks again at a queue that is looked at now)
-- ARGV[4..] field, value (pairs for the record: host, pid, client_id, run_id, queues ...)
--
-- Returns {names of queues to look at now, 1 when there are more than that or 0,
--   names of queues whose dead letters are routed on,
--   1 when it was not in the register: new, or taken for dead, or the register was lost}
-- keys: consumers, consumer, queues, dead_letter_routed, stored_format, guard
-- limits: FORMAT, FORGOTTEN_MS, DUE_AT_ONCE, A_QUEUE_MS, ROUTED_AT_ONCE, MINUTE_MS
local id, ttl, again = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- clock: now
-- begin: ZREM consumers
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('HSET', consumer, 'seen', now, 'ttl', ttl, unpack(ARGV, 4))
local new = redis.call('ZADD', consumers, now, id)
-- Whoever lives removes those who stopped without a goodbye, from their queues first. Here they
-- are kept for ten days, in case that nobody lives.
redis.call('PEXPIRE', consumer, FORGOTTEN_MS)
redis.call('PEXPIRE', consumers, FORGOTTEN_MS)
-- A queue that is in use is listed, whoever died in the middle of declaring or deleting it;
-- a look at it will tell whether it expires.
for place = 4, #ARGV, 2 do
  if ARGV[place] == 'queues' then
    for queue in string.gmatch(ARGV[place + 1], '[^\n]+') do
      redis.call('ZADD', queues, 'NX', 1, queue)
    end
  end
end
-- Each queue is looked at by one consumer at a time, 500 a second in all at most.
local due = redis.call('ZRANGEBYSCORE', queues, '-inf', now, 'LIMIT', 0, DUE_AT_ONCE)
again = math.max(again, A_QUEUE_MS * redis.call('ZCARD', queues))
if #due == 0 then -- what is due much later was noted before the clock was set back
  due = redis.call('ZRANGEBYSCORE', queues, now + math.max(4 * again, MINUTE_MS), '+inf', 'LIMIT',
    0, DUE_AT_ONCE)
end
for _, queue in ipairs(due) do
  redis.call('ZADD', queues, 'XX', now + again, queue)
end
return {due, #due == DUE_AT_ONCE and 1 or 0,
  redis.call('ZRANGE', dead_letter_routed, 0, ROUTED_AT_ONCE - 1), new}
