-- Returns the dead letters among these tags, without those in a move that began less than a day ago.
-- keys: dead, moves
-- limits: DAY_US
local function idle_dead(tags)
  local died = redis.call('ZMSCORE', dead, unpack(tags))
  local moving = redis.call('HMGET', moves, unpack(tags))
  local clock, idle = redis.call('TIME'), {}
  for i, tag in ipairs(tags) do
    -- The number of a move is the time at which it began, in us.
    local begun = tonumber(string.match(moving[i] or '', '^%d+') or '')
    if died[i] and not (begun and clock[1] * 1000000 + clock[2] - begun <= DAY_US) then
      idle[#idle + 1] = tag
    end
  end
  return idle
end
