-- Holds a message for a queue of the target, under this number.
-- keys: kombu_held
local function hold(number, queue, message)
  local place = target .. '|' .. #queue .. '|' .. queue
  redis.call('HSET', kombu_held, string.format('%d', number), place .. message)
end
