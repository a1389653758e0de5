-- note_bound: notes what a queue is bound to, for whoever deletes it.
--
-- KEYS[1] bound (SET)
-- KEYS[2] guard (STRING)
--
-- ARGV[1..] note (msgpack of exchange and binding)
--
-- Returns how many of them are new.
-- Redis 6.2 or newer.
local bound = KEYS[1]

-- A first write that does not grow: a worker must be able to start when memory is full.
redis.call('SREM', bound, '')
return redis.call('SADD', bound, unpack(ARGV))
