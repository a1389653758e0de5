-- pause: keeps a queue from giving anything out, or lets it give out again.
--
-- ARGV[1] paused (1: give nothing out; 0: go on)
--
-- Returns 1 done, 0 no such queue: nothing was changed.
-- keys: meta, ready, delayed, notification, guard
local paused = ARGV[1] == '1'

-- use: notify

if redis.call('HEXISTS', meta, 'exists') == 0 then
  return 0
end
if paused then
  -- A first write that does not grow: a queue can be paused when memory is full.
  redis.call('HDEL', meta, '')
  redis.call('HSET', meta, 'paused', '1')
  return 1
end
redis.call('HDEL', meta, 'paused')
-- Those who wait were told of nothing that came, or fell due, meanwhile.
if redis.call('EXISTS', ready, delayed) > 0 then
  notify()
end
return 1
