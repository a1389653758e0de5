-- configure: changes the settings of a queue that scripts apply, but not its declaration.
--
-- ARGV[1..] field, value (pairs; an empty value removes the field)
--
-- Returns {field, value, ...} of all settings, or {} if the queue does not exist.
-- keys: meta, ready, guard

-- use: notify

if redis.call('HEXISTS', meta, 'exists') == 0 then
  return {}
end
-- begin: HDEL meta
for i = 1, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local changes = value ~= (redis.call('HGET', meta, field) or '')
  if value == '' then
    redis.call('HDEL', meta, field)
  else
    redis.call('HSET', meta, field, value)
  end
  if changes and field == 'rate' then
    redis.call('HDEL', meta, 'rate_state') -- earlier starts count for the earlier rate
  end
  if (field == 'rate' or field == 'concurrency') and redis.pcall('EXISTS', ready) == 1 then
    notify()
  end
  if field == 'expires' then
    -- It counts from now, because earlier use was not recorded.
    local clock = redis.call('TIME')
    redis.call('HSET', meta, 'used_at', clock[1] * 1000 + math.floor(clock[2] / 1000))
  end
end
return redis.call('HGETALL', meta)
