-- Ends leases, even if one key has the wrong type. Consumers may wait for their slots.
-- use: notify
-- keys: unacked_index, unacked, meta, ready
local function end_leases(tags)
  if redis.call('ZREM', unacked_index, unpack(tags)) > 0 then
    -- A record exists as long as its lease.
    redis.pcall('HDEL', unacked, unpack(tags))
    if redis.pcall('HEXISTS', meta, 'concurrency') == 1 and redis.pcall('EXISTS', ready) == 1 then
      notify()
    end
  end
end
