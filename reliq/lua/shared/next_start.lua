-- Returns the time up to which the starts of a rate are spent: the theoretical arrival time, in ms.
local function next_start(rate)
  local spent = rate.base
  for _, start in ipairs(rate) do
    if start[4] > 0 then
      spent = math.max(spent, start[1]) + start[4] * rate.every
    end
  end
  return spent
end
