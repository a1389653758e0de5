-- list_queue: makes a queue visible in the list of queues, and due for a look; or enters it in
-- another list of queues.
--
-- KEYS[1] queues (ZSET)
-- KEYS[2] stored_format (HASH)
-- KEYS[3] guard (STRING)
--
-- ARGV[1] queue (name)
--
-- Returns 1.
-- Redis 6.2 or newer.
-- limits: FORMAT
local queues, stored_format = KEYS[1], KEYS[2]
local queue = ARGV[1]

-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', queues, '')
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('ZADD', queues, 'NX', 0, queue)
return 1
