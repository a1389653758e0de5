-- note_bound: notes what a queue is bound to, for whoever deletes it.
--
-- ARGV[1..] note (msgpack of exchange and binding)
--
-- Returns how many of them are new.
-- keys: bound, guard

-- A first write that does not grow: a worker must be able to start when memory is full.
redis.call('SREM', bound, '')
return redis.call('SADD', bound, unpack(ARGV))
