-- list_queue: makes a queue visible in the list of queues, or due for a look at its expiry.
--
-- KEYS[1] queues (ZSET)
--
-- ARGV[1] queue (name)
-- ARGV[2] check (ms from now when its x-expires is to be looked at; 0: not known to have one;
--         -1: has none)
--
-- Returns 1.
-- Redis 6.2 or newer.
local queues = KEYS[1]
local queue, check = ARGV[1], tonumber(ARGV[2])

-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', queues, '')
if check > 0 then
  local clock = redis.call('TIME')
  redis.call('ZADD', queues, clock[1] * 1000 + math.floor(clock[2] / 1000) + check, queue)
elseif check < 0 then
  redis.call('ZADD', queues, 0, queue)
else
  redis.call('ZADD', queues, 'NX', 0, queue)
end
return 1
