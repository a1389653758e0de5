-- note_bound: records the bindings of a queue, so that its deletion can remove them.
--
-- ARGV[1..] note (msgpack of exchange and binding)
--
-- Returns the number of new ones.
-- keys: bound, guard

-- A first write that does not grow: a worker must be able to start when memory is full.
redis.call('SREM', bound, '')
return redis.call('SADD', bound, unpack(ARGV))
