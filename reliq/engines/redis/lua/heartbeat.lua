-- heartbeat: a consumer says that it lives, and learns which queues need somebody.
--
-- KEYS[1] consumers (ZSET)
-- KEYS[2] consumer (HASH)
-- KEYS[3] queues (ZSET)
-- KEYS[4] rerouted (ZSET)
--
-- ARGV[1] id (of the consumer)
-- ARGV[2] ttl (ms that the record outlives the last heartbeat)
-- ARGV[3..] field, value (pairs for the record: host, pid, client_id, run_id, queues ...)
--
-- Returns {names of queues whose x-expires is to be looked at now,
--   names of queues whose dead letters are routed on}
-- Redis 6.2 or newer.
local consumers, consumer, queues, rerouted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, ttl = ARGV[1], tonumber(ARGV[2])

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', consumers, '')
redis.call('HSET', consumer, unpack(ARGV, 3))
redis.call('PEXPIRE', consumer, ttl)
redis.call('ZADD', consumers, now, id)
-- Those who stopped long ago and did not say goodbye.
redis.call('PEXPIRE', consumers, 10 * ttl)
redis.call('ZREMRANGEBYSCORE', consumers, '-inf', now - 10 * ttl)
-- A queue that is in use is listed, whoever died in the middle of declaring or deleting it;
-- a look at it will tell whether it expires.
for place = 3, #ARGV, 2 do
  if ARGV[place] == 'queues' then
    for queue in string.gmatch(ARGV[place + 1], '[^\n]+') do
      redis.call('ZADD', queues, 'NX', 1, queue)
    end
  end
end
local due = redis.call('ZRANGEBYSCORE', queues, 1, now, 'LIMIT', 0, 20)
for _, queue in ipairs(due) do
  -- Whoever looks says when to look again; until then others have their turn.
  redis.call('ZADD', queues, 'XX', now + ttl, queue)
end
return {due, redis.call('ZRANGE', rerouted, 0, 999)}
