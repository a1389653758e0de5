-- Subtracts from waiting_bytes, not below 0: older messages may not be counted. Returns the rest.
-- use: add
-- keys: stats
local function count_down_bytes(bytes)
  local left = add(stats, 'waiting_bytes', -bytes)
  if left < 0 then
    redis.call('HSET', stats, 'waiting_bytes', 0)
  end
  return math.max(left, 0)
end
