-- Returns the dead letters among these tags, without those in a move that began less than a day ago.
-- use: is_moving
-- keys: dead, moves
local function idle_dead(tags)
  local died = redis.call('ZMSCORE', dead, unpack(tags))
  local moving = redis.call('HMGET', moves, unpack(tags))
  local clock, idle = redis.call('TIME'), {}
  for i, tag in ipairs(tags) do
    if died[i] and not is_moving(moving[i], clock) then
      idle[#idle + 1] = tag
    end
  end
  return idle
end
