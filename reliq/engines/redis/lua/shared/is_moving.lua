-- is_moving: whether a dead letter is on its way to another queue since less than a day.
--
-- The number of its move is the time at which that began, in us.
-- use: DAY_US
local function is_moving(move, clock)
  local begun = move and tonumber(string.match(move, '^%d+') or '')
  return begun and clock[1] * 1000000 + clock[2] - begun <= DAY_US
end
