-- count: adds to a counter of the queue's ledger, and returns what it is now.
--
-- One that holds no number begins anew.
local function count(field, by)
  local value = redis.pcall('HINCRBY', stats, field, by)
  if type(value) == 'table' then
    redis.call('HSET', stats, field, by)
    value = by
  end
  return value
end
