-- attach: notes that a consumer begins or ends to consume from a queue.
--
-- ARGV[1] consumer (id)
-- ARGV[2] mark (of its subscriptions, and of the connection that has them; empty: it left, or
--         is gone)
-- ARGV[3] seen (the mark with which it was found dead: nothing is done where it has another;
--         empty: whatever it has)
-- ARGV[4] silent (ms since it was heard of: the queue's x-expires counts from then)
--
-- Returns 1, or 0 when there is no such queue to consume from, or when the last one left and
--   the queue was deleted (auto_delete).
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info
-- keys: notification, stats, meta, consumers, unacked_mutex, moves, publishers, job_events, history
-- keys: failed_deliveries, guard
-- limits: OUTLIVES_MS
local consumer, mark, seen, silent = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- use: whole, marks_of, lease_of, forget_marks, delete_everything

-- begin: HDEL consumers
if seen ~= '' and redis.call('HGET', consumers, consumer) ~= seen then
  return 1
end
if mark ~= '' then
  if redis.call('HEXISTS', meta, 'exists') == 0 then
    return 0
  end
  redis.call('HSET', consumers, consumer, mark)
  return 1
end
-- Its marks go with it, but for one that its ended leases are still to be judged by.
forget_marks(consumer .. '/')
local known = redis.call('HDEL', consumers, consumer) == 1
if known and redis.call('HLEN', consumers) == 0 and redis.call('EXISTS', meta) == 1 then
  if redis.call('HGET', meta, 'auto_delete') == '1' then
    delete_everything()
    return 0
  end
  local clock = redis.call('TIME')
  local used = clock[1] * 1000 + math.floor(clock[2] / 1000) - silent
  redis.call('HSET', meta, 'used_at', math.max(used, whole(redis.call('HGET', meta, 'used_at')) or 0))
end
return 1
