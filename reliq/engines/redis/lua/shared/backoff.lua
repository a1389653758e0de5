-- Returns the back-off, in ms, of a message after this number of failures.
local function backoff(failed)
  return failed > 0 and math.floor(math.min(backoff_min * 2 ^ (failed - 1), backoff_max)) or 0
end
