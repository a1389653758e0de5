-- Stores the state of a queue's rate, with n more starts.
-- use: next_start
-- keys: meta
-- limits: STARTS_LISTED
local function keep_rate(rate, token, n)
  if n > 0 then
    while #rate > 0 and next_start(rate) <= now do
      rate.base = 0
      table.remove(rate, 1) -- earlier starts have no effect any more
    end
    rate[#rate + 1] = {now, token, n, n}
  end
  while #rate > STARTS_LISTED do
    local first = table.remove(rate, 1)
    rate.base = next_start({base = rate.base, every = rate.every, first})
  end
  local parts = {string.format('%.3f', math.max(rate.base, 0))}
  for _, start in ipairs(rate) do
    parts[#parts + 1] = string.format('%d,%d,%d,%d', unpack(start))
  end
  redis.call('HSET', meta, 'rate_state', table.concat(parts, ';'))
end
