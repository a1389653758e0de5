-- add: adds to a number in a hash, and returns what it is now.
--
-- One that is no number begins anew.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end
