-- Returns the permanent number of a move; nil while a move to another target is under a day old.
-- use: whole
-- keys: moves, stats
-- limits: DAY_US
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
