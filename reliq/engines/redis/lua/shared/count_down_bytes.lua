-- count_down_bytes: so many bytes wait no more; returns how many do.
--
-- What waited before the queue was declared with the limit was never counted.
-- use: add
local function count_down_bytes(bytes)
  local left = add(stats, 'waiting_bytes', -bytes)
  if left < 0 then
    redis.call('HSET', stats, 'waiting_bytes', 0)
  end
  return math.max(left, 0)
end
