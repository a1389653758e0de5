-- Ends leases, even if one key has the wrong type. Returns the tags whose lease this call ended.
-- keys: unacked_index, unacked
local function end_leases(tags)
  local found, ended = redis.call('ZREM', unacked_index, unpack(tags)), tags
  if found < #tags then
    -- A record exists as long as its lease.
    local records = found > 0 and redis.pcall('HMGET', unacked, unpack(tags)) or {}
    ended = {}
    for i, record in ipairs(records) do
      ended[#ended + 1] = record and tags[i] or nil
    end
  end
  if found > 0 then
    redis.pcall('HDEL', unacked, unpack(tags))
  end
  return ended
end
