-- list_queue: makes a queue visible in the list of queues, and due for a look; or enters it in
-- another list of queues.
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
