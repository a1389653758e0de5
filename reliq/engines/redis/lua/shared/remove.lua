-- Removes what is in no place any more for good, and counts it.
local function remove(tags, counter)
  redis.call('HDEL', dead_info, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  add(stats, counter, #tags)
end
