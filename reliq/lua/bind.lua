-- bind: changes the bindings of an exchange, together with their version.
--
-- ARGV[1] bound (1: add; 0: remove; -1: remove, without creating a missing table)
-- ARGV[2..] binding (msgpack of routing key and queue)
--
-- Returns the number of bindings.
-- keys: bindings, guard
local bound = tonumber(ARGV[1])

-- begin: HDEL bindings
local changed = 0
for i = 2, #ARGV do
  if bound == 1 then
    changed = changed + redis.call('HSETNX', bindings, ARGV[i], '')
  else
    changed = changed + redis.call('HDEL', bindings, ARGV[i])
  end
end
if changed > 0 or (bound >= 0 and redis.call('HEXISTS', bindings, 'version') == 0) then
  local clock = redis.call('TIME')
  redis.call('HSET', bindings, 'version', clock[1] .. '.' .. clock[2])
end
return math.max(redis.call('HLEN', bindings) - 1, 0)
