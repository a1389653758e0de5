-- list_queue: adds a queue to the list of all queues (due for a check), or to another list.
--
-- ARGV[1] queue (name)
--
-- Returns 1.
-- keys: queues, stored_format, guard
-- limits: FORMAT
local queue = ARGV[1]

-- begin: ZREM queues
redis.call('HSETNX', stored_format, 'version', FORMAT)
redis.call('ZADD', queues, 'NX', 0, queue)
return 1
