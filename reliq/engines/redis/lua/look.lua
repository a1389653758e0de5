-- look: lets one consumer at a time look after all the others, wherever they consume.
--
-- ARGV[1] consumer (id of who asks)
-- ARGV[2] hold (ms that the duty stays its own)
--
-- Returns the ids of those who have been silent longest, or nothing where the duty is another's.
-- keys: consumers, looking, guard
-- limits: LOOKED_AT
local consumer, hold = ARGV[1], tonumber(ARGV[2])

-- begin: ZREM consumers
if not redis.call('SET', looking, consumer, 'NX', 'PX', hold) then
  -- A duty that is to last for much longer is of before the server's clock was set back.
  if redis.call('GET', looking) ~= consumer and redis.call('PTTL', looking) <= 4 * hold then
    return {}
  end
  redis.call('SET', looking, consumer, 'PX', hold)
end
return redis.call('ZRANGE', consumers, 0, LOOKED_AT - 1)
