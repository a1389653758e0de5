-- delete_everything: deletes a queue with all that is in it.
--
-- What makes a retry no second message outlives it by a minute: one may be on its way.
-- use: OUTLIVES_MS
local function delete_everything()
  redis.call('UNLINK', messages, ready, delayed, unacked_index, unacked, deliveries, expiry,
    dead, dead_info, notification, stats, meta, mutex, moves)
  if redis.call('PTTL', publishers) > OUTLIVES_MS then
    redis.call('PEXPIRE', publishers, OUTLIVES_MS)
  end
end
