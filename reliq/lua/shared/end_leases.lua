-- Ends leases, even if one key has the wrong type.
-- keys: unacked_index, unacked
local function end_leases(tags)
  if redis.call('ZREM', unacked_index, unpack(tags)) > 0 then
    -- A record exists as long as its lease.
    redis.pcall('HDEL', unacked, unpack(tags))
  end
end
