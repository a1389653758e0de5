-- oldest: names the first ready message of each rank.
--
-- KEYS[1] ready (ZSET)
--
-- ARGV: none
--
-- Returns their tags; none where nothing is ready.
-- Redis 6.2 or newer.
local ready = KEYS[1]

local heads = {}
local from = '-inf'
while true do
  local head = redis.call('ZRANGEBYSCORE', ready, from, '+inf', 'LIMIT', 0, 1)
  if not head[1] then
    return heads
  end
  heads[#heads + 1] = head[1]
  local rank = tonumber(string.sub(head[1], 1, 2), 16)
  from = string.format('%.0f', (rank + 1) * 35184372088832)
end
