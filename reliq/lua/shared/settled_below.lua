-- Returns the number below which all moves are settled; removes those whose message has left.
-- use: whole
-- keys: unacked_index, dead, moves
local function settled_below(low_water, begun)
  for i = 1, #begun, 2 do
    local tag, number = begun[i], whole(string.match(begun[i + 1], '^(%d+)|'))
    local held = redis.call('ZSCORE', unacked_index, tag) == 'inf'
    if held or redis.call('ZSCORE', dead, tag) then
      low_water = math.min(low_water, number or low_water)
    else
      redis.call('HDEL', moves, tag)
    end
  end
  return low_water
end
