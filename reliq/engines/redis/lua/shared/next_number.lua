-- Returns the first of n numbers, above the time in us: a restored copy repeats none. Counts gaps.
local function next_number(n, time)
  local known = redis.call('HMGET', stats, 'token', 'job_events')
  local last, events = whole(known[1]) or 0, whole(known[2]) or 0
  time = time or redis.call('TIME')
  local first = math.max(last + 1, time[1] * 1000000 + time[2])
  redis.call('HSET', stats, 'token', string.format('%d', first + n - 1),
    'job_events', string.format('%d', events + first - last - 1))
  return first
end
