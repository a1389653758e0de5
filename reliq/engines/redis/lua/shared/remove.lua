-- Removes the data of messages that are in no state any more, and counts them.
-- use: add
-- keys: dead_info, deliveries, messages, stats
local function remove(tags, counter)
  redis.call('HDEL', dead_info, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  add(stats, counter, #tags)
end
