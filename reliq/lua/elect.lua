-- elect: assigns the check for dead consumers to one consumer at a time.
--
-- ARGV[1] consumer (id of the caller)
-- ARGV[2] hold (ms for which it keeps the duty)
--
-- Returns the ids of the consumers with the oldest heartbeats; {} if another has the duty.
-- keys: consumers, looking, guard
-- limits: CHECKED_AT_ONCE
local consumer, hold = ARGV[1], tonumber(ARGV[2])

-- begin: ZREM consumers
if not redis.call('SET', looking, consumer, 'NX', 'PX', hold) then
  -- A duty that ends much later was assigned before the server's clock was set back.
  if redis.call('GET', looking) ~= consumer and redis.call('PTTL', looking) <= 4 * hold then
    return {}
  end
  redis.call('SET', looking, consumer, 'PX', hold)
end
return redis.call('ZRANGE', consumers, 0, CHECKED_AT_ONCE - 1)
