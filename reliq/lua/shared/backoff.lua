-- Returns the time at which a message is due after this number of failures; nil without a back-off.
local function backoff(failed)
  local wait = failed > 0 and math.floor(math.min(backoff_min * 2 ^ (failed - 1), backoff_max)) or 0
  return wait > 0 and now + wait or nil
end
