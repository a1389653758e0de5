-- declare_exchange: stores the declaration of an exchange unless there is one.
--
-- KEYS[1] exchanges (HASH)
-- KEYS[2] stored_format (HASH)
-- KEYS[3] guard (STRING)
--
-- ARGV[1] exchange (name)
-- ARGV[2] declaration (msgpack)
--
-- Returns the declaration as stored.
-- Redis 6.2 or newer.
-- limits: FORMAT
local exchanges, stored_format = KEYS[1], KEYS[2]
local exchange, declaration = ARGV[1], ARGV[2]

-- A first write that does not grow: a worker must be able to start when memory is full.
redis.call('HDEL', exchanges, '')
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('HSETNX', exchanges, exchange, declaration)
return redis.call('HGET', exchanges, exchange)
