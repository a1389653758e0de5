-- Forgets the numbers of a move below low_water, and keeps the others for a while.
local function settle()
  redis.call('ZREMRANGEBYSCORE', publisher, '-inf', '(' .. low_water)
  redis.call('ZADD', publisher, 'GT', low_water, 'low_water')
  redis.call('PEXPIRE', publisher, MOVES_KEPT_MS)
end
