-- Deletes the queue with its data; publish numbers outlive it by a minute, for a late retry.
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info
-- keys: notification, stats, meta, unacked_mutex, moves, job_events, history, failed_deliveries
-- keys: publishers
-- limits: OUTLIVES_MS
local function wipe()
  redis.call('UNLINK', messages, ready, delayed, unacked_index, unacked, deliveries, expiry,
    dead, dead_info, notification, stats, meta, unacked_mutex, moves, job_events, history,
    failed_deliveries)
  if redis.call('PTTL', publishers) > OUTLIVES_MS then
    redis.call('PEXPIRE', publishers, OUTLIVES_MS)
  end
end
