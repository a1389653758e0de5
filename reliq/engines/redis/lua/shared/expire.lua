-- Takes out what has expired: first what does not grow, so that it runs when memory is full.
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
