-- purge: removes waiting messages (ready or delayed), some at a time.
--
-- Returns the number of removed messages; 0 when none is left.
-- keys: messages, ready, delayed, deliveries, expiry, stats, job_events, guard
-- limits: BATCH

-- use: add, bytes_of, intact, keep_events, permitted

intact({messages, deliveries, stats}, {expiry, job_events})
permitted(messages, expiry)
redis.call('TIME') -- events need this right, too
local source = ready
local tags = redis.call('ZRANGE', ready, 0, BATCH - 1)
if #tags == 0 then
  source = delayed
  tags = redis.call('ZRANGE', delayed, 0, BATCH - 1)
end
if #tags > 0 then
  local bytes = redis.call('HEXISTS', stats, 'waiting_bytes') == 1 and bytes_of(tags)
  -- Counters follow: a first write that does not grow lets the rest run when memory is full.
  redis.call('ZREM', source, unpack(tags))
  redis.call('ZREM', expiry, unpack(tags))
  keep_events(tags, 'gone', 'purged', '')
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  if bytes then
    add(stats, 'waiting_bytes', -bytes)
  end
  add(stats, 'purged', #tags)
end
return #tags
