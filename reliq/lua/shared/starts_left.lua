-- Returns how many starts a rate allows now, and the ms until the next one; 0 if it is possible.
-- use: next_start
local function starts_left(rate)
  local spent = math.max(next_start(rate) - now, 0)
  local starts = math.floor(rate.burst - spent / rate.every)
  if starts < 1 then
    return starts, math.max(math.ceil(spent - (rate.burst - 1) * rate.every), 1)
  end
  return starts, 0
end
