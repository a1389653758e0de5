-- begin_move: gives a message the next number of a move to a target, and returns it.
local function begin_move(tag, target)
  local number = string.format('%d', redis.call('HINCRBY', stats, 'move', 1))
  redis.call('HSET', moves, tag, number .. '|' .. target)
  return number
end
