-- Begins the leases of which records are given, or changes the deadlines of those that exist.
-- keys: unacked_index, unacked
local function lease(deadlines, records)
  if records then
    redis.call('HSET', unacked, unpack(records))
    redis.call('ZADD', unacked_index, unpack(deadlines))
  else
    redis.call('ZADD', unacked_index, 'XX', unpack(deadlines))
  end
end
