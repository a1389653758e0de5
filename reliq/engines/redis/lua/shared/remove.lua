-- Removes the data of messages that are in no state any more, and counts them.
local function remove(tags, counter)
  redis.call('HDEL', dead_info, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  add(stats, counter, #tags)
end
