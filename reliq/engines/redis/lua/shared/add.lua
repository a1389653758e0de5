-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end
