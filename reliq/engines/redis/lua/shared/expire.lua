-- expire: takes messages out that have waited beyond their time to live.
--
-- To the dead letters where kept, else for good. Returns how many bytes wait no more, where
-- they are counted.
-- use: add
local function expire(tags, now, kept, counted)
  -- A first write that does not grow lets the rest run when memory is full.
  redis.call('ZREM', expiry, unpack(tags))
  redis.call('ZREM', ready, unpack(tags))
  redis.call('ZREM', delayed, unpack(tags))
  local bytes = 0
  if counted then
    for _, tag in ipairs(tags) do
      bytes = bytes + redis.call('HSTRLEN', messages, tag)
    end
  end
  if kept then
    local failed = redis.call('HMGET', deliveries, unpack(tags))
    for i, tag in ipairs(tags) do
      redis.call('ZADD', dead, now, tag)
      redis.call('HSET', dead_info, tag, 'expired|' .. (failed[i] or 0) .. '||')
    end
    add(stats, 'dead_lettered', #tags)
    add(stats, 'dead:expired', #tags)
  else
    redis.call('HDEL', messages, unpack(tags))
    redis.call('HDEL', deliveries, unpack(tags))
    add(stats, 'expired', #tags)
  end
  return bytes
end
