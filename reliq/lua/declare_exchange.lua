-- declare_exchange: stores the declaration of an exchange, unless one exists.
--
-- ARGV[1] exchange (name)
-- ARGV[2] declaration (msgpack)
--
-- Returns the declaration as stored.
-- keys: exchanges, stored_format, guard
-- limits: FORMAT
local exchange, declaration = ARGV[1], ARGV[2]

-- A first write that does not grow: a worker must be able to start when memory is full.
redis.call('HDEL', exchanges, '')
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('HSETNX', exchanges, exchange, declaration)
return redis.call('HGET', exchanges, exchange)
