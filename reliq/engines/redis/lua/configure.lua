-- configure: changes what scripts know of a queue's arguments, not its declaration.
--
-- ARGV[1..] field, value (pairs; an empty value removes the field)
--
-- Returns {field, value, ...} of all there is now; {} no such queue: nothing was changed.
-- keys: meta, guard

if redis.call('HEXISTS', meta, 'exists') == 0 then
  return {}
end
-- begin: HDEL meta
for i = 1, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if value == '' then
    redis.call('HDEL', meta, field)
  else
    redis.call('HSET', meta, field, value)
  end
  if field == 'expires' then
    -- It counts from now: its use was not noted before.
    local clock = redis.call('TIME')
    redis.call('HSET', meta, 'used_at', clock[1] * 1000 + math.floor(clock[2] / 1000))
  end
end
return redis.call('HGETALL', meta)
