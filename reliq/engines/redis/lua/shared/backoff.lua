-- Returns for how many ms a message waits that has failed so many times.
local function backoff(failed)
  return failed > 0 and math.floor(math.min(backoff_min * 2 ^ (failed - 1), backoff_max)) or 0
end
