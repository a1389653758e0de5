-- pause: pauses or resumes the deliveries of a queue.
--
-- ARGV[1] paused (1: pause; 0: resume)
--
-- Returns 1 done, 0 no such queue.
-- keys: meta, ready, delayed, guard
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
-- Waiting consumers got no notifications during the pause.
if redis.call('EXISTS', ready, delayed) > 0 then
  notify()
end
return 1
