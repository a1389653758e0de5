-- Returns a rate as GCRA counts it, nil if malformed: every (ms between two starts), burst, base (ms
-- up to which starts are spent without those listed), and for each instant {at (ms), first token,
-- leases, those not handed back}. The times of a state from the future move back with the clock.
-- use: whole, keep_rate
local function read_rate(rate, state)
  local number, unit, burst = string.match(rate, '^(%d+)/([smh])(.*)$')
  local period = ({s = 1000, m = 60000, h = 3600000})[unit or '']
  if not period or tonumber(number) < 1 then
    return nil
  end
  local base, listed = string.match(state or '', '^([%d.]+)(.*)$')
  local log = {
    every = period / number,
    burst = whole(string.match(burst, '^ burst (%d+)$')) or math.floor(number * 100 / period),
    base = tonumber(base or '') or 0,
  }
  log.burst = math.max(log.burst, 1)
  for at, token, size, left in string.gmatch(listed or '', ';(%d+),(%d+),(%d+),(%d+)') do
    log[#log + 1] = {tonumber(at), tonumber(token), tonumber(size), tonumber(left)}
  end
  local ahead = #log > 0 and log[#log][1] - now or 0
  if ahead > 0 then
    log.base = log.base - ahead
    for _, start in ipairs(log) do
      start[1] = start[1] - ahead
    end
    keep_rate(log, 0, 0)
  end
  return log
end
