-- Returns the last number, at least the time in us: none repeats after a crash that lost writes.
-- keys: kombu_last
local function last_held(clock)
  return math.max(clock[1] * 1000000 + clock[2], redis.call('GET', kombu_last) or 0)
end
