-- purge: removes waiting messages (ready or delayed), some at a time.
--
-- Returns the number of removed messages; 0 when none is left.
-- keys: messages, ready, delayed, deliveries, expiry, stats, job_events, guard
-- limits: BATCH

-- use: take, leave, intact, keep_events, permitted

intact({messages, deliveries, stats}, {expiry, job_events})
permitted(messages, expiry)
redis.call('TIME') -- events need this right, too
local tags = redis.call('ZRANGE', ready, 0, BATCH - 1)
if #tags == 0 then
  tags = redis.call('ZRANGE', delayed, 0, BATCH - 1)
end
if #tags > 0 then
  take(tags)
  keep_events(tags, 'gone', 'purged', '')
  leave(tags, 'purged')
end
return #tags
