-- report_running: records the running tasks of a worker that are already acked.
--
-- ARGV[1] number (of the report: a later report is not replaced)
-- ARGV[2] running (JSON: queue -> tasks)
--
-- Returns 1; 0 when the consumer is not in the register, and nothing was recorded.
-- keys: consumer, guard
local number, running = tonumber(ARGV[1]), ARGV[2]

-- begin: HDEL consumer
if redis.call('EXISTS', consumer) == 0 then
  return 0
end
-- Reports over different connections may arrive in another order.
if number > (tonumber(redis.call('HGET', consumer, 'said') or 0) or 0) then
  redis.call('HSET', consumer, 'said', number, 'running', running)
end
return 1
