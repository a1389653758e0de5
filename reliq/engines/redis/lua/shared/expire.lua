-- Removes expired messages; begins with writes that do not grow, in case memory is full.
-- use: keep_events, keep_expired, remove
-- keys: expiry, ready, delayed
local function expire(tags, now, kept)
  redis.call('ZREM', expiry, unpack(tags))
  redis.call('ZREM', ready, unpack(tags))
  redis.call('ZREM', delayed, unpack(tags))
  keep_events(tags, kept and 'dead' or 'gone', 'expired', '')
  if kept then
    keep_expired(tags, now)
  else
    remove(tags, 'expired')
  end
end
