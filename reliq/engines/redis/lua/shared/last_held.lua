-- Returns the last number, raised to the time in us: after a crash that lost writes none repeats.
local function last_held(clock)
  return math.max(clock[1] * 1000000 + clock[2], redis.call('GET', kombu_last) or 0)
end
