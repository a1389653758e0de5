-- promote: makes due messages ready for others, for a caller that cannot take them.
--
-- Returns {ms until the next delayed message is due or -1, 1 when messages are ready and the
--   queue is not paused, else 0}
-- keys: ready, delayed, stats, meta, guard
-- limits: BATCH

-- use: intact, promote, notify, permitted

-- clock: now
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, BATCH)
if #due > 0 then
  intact({stats, meta}, {ready})
  permitted(stats, ready)
  promote(due)
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
local next_due = head[2] and math.max(0, head[2] - now) or -1
local open = redis.call('EXISTS', ready) == 1 and redis.call('HEXISTS', meta, 'paused') == 0
if open then
  notify()
end
return {next_due, open and 1 or 0}
