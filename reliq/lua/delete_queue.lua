-- delete_queue: deletes a queue and all its data, if the conditions hold.
--
-- ARGV[1] if_empty (1: refuse while a message is ready or delayed)
-- ARGV[2] if_unused (1: refuse while it has consumers)
-- ARGV[3] if_idle (1: only when x-expires has passed without consumer or use)
-- ARGV[4] if_drained (1: only a closed partition without messages, job events and publish
--         numbers: without its number, a retry would store its message twice)
--
-- Returns {outcome, n}: 1 deleted with n waiting messages; 0 not found; -1 not empty (n messages);
--   -2 in use (n consumers); -3 not idle (n ms remain; -1: never expires); -4 not drained
-- keys: messages, ready, delayed, meta, consumers, moves, publishers, job_events, guard
local if_empty, if_unused, if_idle = ARGV[1] == '1', ARGV[2] == '1', ARGV[3] == '1'
local if_drained = ARGV[4] == '1'

-- use: whole, wipe

if redis.call('EXISTS', meta) == 0 then
  return {0, 0}
end
-- A key of the wrong type counts as empty, and is deleted with the queue.
local waiting = tonumber(redis.pcall('ZCARD', ready)) or 0
waiting = waiting + (tonumber(redis.pcall('ZCARD', delayed)) or 0)
if if_empty and waiting > 0 then
  return {-1, waiting}
end
local users = tonumber(redis.pcall('HLEN', consumers)) or 0
if if_unused and users > 0 then
  return {-2, users}
end
if if_idle then
  local idle = redis.call('HMGET', meta, 'expires', 'used_at')
  local expires = whole(idle[1])
  if not expires then
    return {-3, -1}
  end
  -- clock: now
  if users > 0 then
    -- begin: HDEL meta
    redis.call('HSET', meta, 'used_at', now)
  end
  local left = (users > 0 and now or whole(idle[2]) or now) + expires - now
  if left > 0 then
    return {-3, left}
  end
end
if if_drained and (redis.call('HEXISTS', meta, 'closed') == 0
    or redis.call('EXISTS', messages, moves, publishers, job_events) > 0) then
  return {-4, waiting}
end
-- Keep its consumers: they keep waiting, and belong to a new queue of the same name.
wipe()
return {1, waiting}
