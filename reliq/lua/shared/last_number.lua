-- Returns the last number, at least the time in us: none repeats after lost writes or a new queue.
-- use: whole
-- keys: stats
local function last_number(clock)
  local before = whole(redis.call('HGET', stats, 'move')) or 0
  local last = math.max(clock[1] * 1000000 + clock[2], before)
  redis.call('HSET', stats, 'move', string.format('%d', last))
  return last
end
