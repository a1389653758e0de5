-- Takes messages out of the places where they wait, even if one key has the wrong type.
-- use: count_bytes
-- keys: ready, delayed, expiry
local function take(tags)
  local taken = redis.pcall('ZREM', ready, unpack(tags))
  local later = redis.pcall('ZREM', delayed, unpack(tags))
  redis.pcall('ZREM', expiry, unpack(tags))
  if taken ~= 0 or later ~= 0 then
    count_bytes(tags, -1)
  end
end
