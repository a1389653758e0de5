-- Removes the numbers of a move below low_water, and sets the expiry of the others.
-- keys: publisher
-- limits: MOVES_KEPT_MS
local function settle_numbers()
  redis.call('ZREMRANGEBYSCORE', publisher, '-inf', '(' .. low_water)
  redis.call('ZADD', publisher, 'GT', low_water, 'low_water')
  redis.call('PEXPIRE', publisher, MOVES_KEPT_MS)
end
