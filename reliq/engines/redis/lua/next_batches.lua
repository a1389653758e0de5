-- next_batches: takes batches that are due to be looked after, each for one who asks.
--
-- ARGV[1] count (batches at most)
-- ARGV[2] again (ms until a batch that is taken now is due again)
-- ARGV[3..] at, id (ms; of batches that are not due before)
--
-- Returns {ids of batches}, those first that have been due longest.
-- keys: batches, guard
local count, again = tonumber(ARGV[1]), tonumber(ARGV[2])

-- clock: now
-- begin: ZREM batches
for i = 3, #ARGV, 2 do
  redis.call('ZADD', batches, 'XX', 'GT', ARGV[i], ARGV[i + 1])
end
local due = redis.call('ZRANGEBYSCORE', batches, '-inf', now, 'LIMIT', 0, count)
for _, id in ipairs(due) do
  redis.call('ZADD', batches, 'XX', now + again, id)
end
return due
