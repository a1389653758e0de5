-- Removes messages that are in no place any more, and counts them. Returns their number.
-- use: add
-- keys: messages, deliveries, stats
local function leave(tags, counter)
  local removed = redis.call('HDEL', messages, unpack(tags))
  if redis.pcall('EXISTS', deliveries) ~= 0 then
    redis.pcall('HDEL', deliveries, unpack(tags))
  end
  if removed > 0 then
    add(stats, counter, removed)
  end
  return removed
end
