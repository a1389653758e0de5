-- Removes what has expired for good.
local function remove_expired(tags)
  redis.call('HDEL', messages, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  add(stats, 'expired', #tags)
end
