-- begun_moves: goes on with the moves that were begun, of dead letters or of what waits.
--
-- One of the other kind only keeps low_water down; one whose message has left in another way
-- (a late ack, the cap) is over; after a day without an end another target may have it.
-- Returns low_water, below which every number is settled, and {tag, number, target} of each.
-- use: DAY_US, whole
local function begun_moves(target, waiting, clock)
  local begun = redis.call('HGETALL', moves)
  -- A first write that does not grow lets the rest run when memory is full.
  redis.call('HDEL', moves, '')
  -- Numbers keep up with the time: a queue that is made again, or has lost its last writes
  -- in a crash, does not repeat them.
  local last = math.max(clock[1] * 1000000 + clock[2], whole(redis.call('HGET', stats, 'move')) or 0)
  redis.call('HSET', stats, 'move', string.format('%d', last))
  local low_water, found = last + 1, {}
  for i = 1, #begun, 2 do
    local tag = begun[i]
    local number, to = string.match(begun[i + 1], '^(%d+)|(.*)$')
    number = whole(number)
    local told = number
    -- No move wrote that: it begins now.
    number = number or redis.call('HINCRBY', stats, 'move', 1)
    local held = redis.call('ZSCORE', unacked_index, tag) == 'inf'
    if held or redis.call('ZSCORE', dead, tag) then
      low_water = math.min(low_water, number)
      if not told or (held == waiting and to ~= target and last - number > DAY_US) then
        to = target
        redis.call('HSET', moves, tag, string.format('%d|%s', number, target))
      end
      if held == waiting then
        found[#found + 1] = {tag, string.format('%d', number), to}
      end
    else
      redis.call('HDEL', moves, tag)
    end
  end
  return low_water, found
end
