-- next_batches: assigns batches that are due for a check, each to one caller.
--
-- ARGV[1] count (batches at most)
-- ARGV[2] again (ms until a batch that is assigned now is due again)
-- ARGV[3..] at, id (pairs: ms; id of a batch that is not due earlier)
--
-- Returns {ids of batches}, the longest due first.
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
