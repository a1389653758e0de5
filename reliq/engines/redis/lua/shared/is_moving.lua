-- Whether the move of a dead letter began less than a day ago; its number is that time, in us.
-- limits: DAY_US
local function is_moving(move, clock)
  local begun = move and tonumber(string.match(move, '^%d+') or '')
  return begun and clock[1] * 1000000 + clock[2] - begun <= DAY_US
end
