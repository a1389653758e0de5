-- Takes messages out of the dead letters, without their failures, even if one key has the wrong type.
-- keys: dead, dead_info, deliveries
local function unbury(tags)
  redis.pcall('ZREM', dead, unpack(tags))
  redis.pcall('HDEL', dead_info, unpack(tags))
  redis.pcall('HDEL', deliveries, unpack(tags))
end
