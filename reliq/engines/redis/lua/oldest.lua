-- oldest: names the first ready message of each rank.
--
-- KEYS[1] ready (ZSET)
--
-- ARGV: none
--
-- Returns their tags; none where nothing is ready.
-- Redis 6.2 or newer.
local ready = KEYS[1]
-- use: RANK, HIGHEST_RANK

local heads = {}
-- By their scores, which only grow: there are 256 ranks, whatever is stored.
local from = '-inf'
while from do
  local head = redis.call('ZRANGEBYSCORE', ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    break
  end
  heads[#heads + 1] = head[1]
  local rank = math.max(0, math.min(HIGHEST_RANK, math.floor(tonumber(head[2]) / RANK)))
  from = rank < HIGHEST_RANK and string.format('%.0f', (rank + 1) * RANK)
end
return heads
