-- delete_queue: deletes a queue and everything in it, if the conditions hold.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] unacked (HASH)
-- KEYS[6] deliveries (HASH)
-- KEYS[7] expiry (ZSET)
-- KEYS[8] dead (ZSET)
-- KEYS[9] dead_info (HASH)
-- KEYS[10] notification (LIST)
-- KEYS[11] stats (HASH)
-- KEYS[12] meta (HASH)
-- KEYS[13] consumers (HASH)
-- KEYS[14] unacked_mutex (STRING)
-- KEYS[15] moves (HASH)
-- KEYS[16] publishers (HASH)
-- KEYS[17] job_events (ZSET)
-- KEYS[18] history (HASH)
-- KEYS[19] failed_deliveries (LIST)
-- KEYS[20] guard (STRING)
--
-- ARGV[1] if_empty (1: refuse while a message is ready or delayed)
-- ARGV[2] if_unused (1: refuse while it has consumers)
-- ARGV[3] if_idle (1: only when x-expires has passed without consumer or use)
-- ARGV[4] if_drained (1: only a partition that takes nothing new, holds nothing, and has no numbers
--         of publishers: a retry would find that it was never stored; nor events of jobs)
--
-- Returns {outcome, n}: 1 deleted with n messages in it; 0 not found; -1 not empty (n messages);
--   -2 in use (n consumers); -3 not idle yet (n ms to go; -1: never expires); -4 not drained
-- Redis 6.2 or newer.
-- limits: OUTLIVES_MS
local messages, ready, delayed, unacked_index, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, expiry, dead, dead_info = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local notification, stats, meta, consumers, mutex = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local moves, publishers, job_events = KEYS[15], KEYS[16], KEYS[17]
local history, failed_deliveries = KEYS[18], KEYS[19]
local if_empty, if_unused, if_idle = ARGV[1] == '1', ARGV[2] == '1', ARGV[3] == '1'
local if_drained = ARGV[4] == '1'

-- use: whole, delete_everything

if redis.call('EXISTS', meta) == 0 then
  return {0, 0}
end
-- A key that holds something else counts as empty: the queue can be deleted with it.
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
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if users > 0 then
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
-- Its consumers stay noted: they listen on, and are those of a queue that is made anew.
delete_everything()
return {1, waiting}
