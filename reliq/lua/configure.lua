-- configure: changes the settings of a queue that scripts apply, but not its declaration.
--
-- ARGV[1..] field, value (pairs; an empty value removes the field)
--
-- Returns {field, value, ...} of all settings, or {} if the queue does not exist.
-- keys: meta, ready, guard

-- clock: now
-- use: notify

if redis.call('HEXISTS', meta, 'exists') == 0 then
  return {}
end
-- begin: HDEL meta
for i = 1, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', meta, field)
  if value == '' then
    redis.call('HDEL', meta, field)
  else
    redis.call('HSET', meta, field, value)
  end
  if field == 'rate' and value ~= (before or '') then
    -- use: read_rate, next_start, keep_rate

    local old = before and read_rate(before, redis.call('HGET', meta, 'rate_state'))
    local new = read_rate(value)
    redis.call('HDEL', meta, 'rate_state')
    if old and new then
      -- Starts that the earlier rate has spent stay spent: a change gives none.
      local spent = math.max(next_start(old) - now, 0) / old.every
      new.base = now + math.min(spent, new.burst) * new.every
      keep_rate(new, 0, 0)
    end
  end
  if (field == 'rate' or field == 'concurrency') and redis.pcall('EXISTS', ready) == 1 then
    notify()
  end
  if field == 'expires' then
    -- It counts from now, because earlier use was not recorded.
    redis.call('HSET', meta, 'used_at', now)
  end
end
return redis.call('HGETALL', meta)
