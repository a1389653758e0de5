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
-- By their scores, which only grow: there are 256 ranks, whatever is stored.
local from = '-inf'
while from do
  local head = redis.call('ZRANGEBYSCORE', ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    break
  end
  heads[#heads + 1] = head[1]
  local rank = math.max(0, math.min(255, math.floor(tonumber(head[2]) / 35184372088832)))
  from = rank < 255 and string.format('%.0f', (rank + 1) * 35184372088832)
end
return heads
