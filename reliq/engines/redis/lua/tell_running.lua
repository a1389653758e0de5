-- tell_running: a worker says which tasks it runs that are acknowledged already.
--
-- ARGV[1] number (of what is said: what was said after it stays)
-- ARGV[2] running (JSON: queue -> tasks)
--
-- Returns 1; 0 when the consumer is not in the register, and nothing was said.
-- keys: consumer, guard
local number, running = tonumber(ARGV[1]), ARGV[2]

-- begin: HDEL consumer
if redis.call('EXISTS', consumer) == 0 then
  return 0
end
-- Over another connection: what is said later may come sooner.
if number > (tonumber(redis.call('HGET', consumer, 'said') or 0) or 0) then
  redis.call('HSET', consumer, 'said', number, 'running', running)
end
return 1
