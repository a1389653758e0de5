-- Refuses a user who lacks a right that a later step needs; '-' is no tag, and '' may be junk.
local function permitted(hash, zset)
  redis.call('TIME')
  redis.call('HDEL', hash, '-')
  redis.call('HSTRLEN', hash, '-')
  redis.call('HGET', hash, '-')
  redis.call('ZREM', zset, '-')
  redis.call('ZADD', zset, 'XX', 0, '-')
end
