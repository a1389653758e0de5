-- Turns expired messages into dead letters.
-- use: add
-- keys: deliveries, dead, dead_info, stats
local function keep_expired(tags, now)
  local failed = redis.call('HMGET', deliveries, unpack(tags))
  for i, tag in ipairs(tags) do
    redis.call('ZADD', dead, now, tag)
    redis.call('HSET', dead_info, tag, 'expired|' .. (failed[i] or 0) .. '||')
  end
  add(stats, 'dead_lettered', #tags)
  add(stats, 'dead:expired', #tags)
end
