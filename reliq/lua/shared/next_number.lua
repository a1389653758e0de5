-- Returns the first of n numbers, above the time in us: a restored copy repeats none. Counts gaps.
-- use: whole, add
-- keys: stats
local function next_number(n, time)
  local last = whole(redis.call('HGET', stats, 'token')) or 0
  time = time or redis.call('TIME')
  local gap = math.max(time[1] * 1000000 + time[2] - last - 1, 0)
  if gap > 0 then
    add(stats, 'job_events', gap)
  end
  return add(stats, 'token', gap + n) - n + 1
end
