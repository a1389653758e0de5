-- Returns the number of a move: its first stays. nil while it moves elsewhere, for a day.
local function number_of_move(tag, last)
  local begun, to = string.match(redis.call('HGET', moves, tag) or '', '^(%d+)|(.*)$')
  local number = whole(begun)
  if number and to ~= target and last - number <= DAY_US then
    return nil
  end
  number = number or redis.call('HINCRBY', stats, 'move', 1)
  redis.call('HSET', moves, tag, string.format('%d|%s', number, target))
  return number
end
