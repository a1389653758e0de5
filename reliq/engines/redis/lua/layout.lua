-- layout: says into how many partitions a queue is divided, or changes what a partition knows.
--
-- ARGV[1] partitions (how many there are to publish to; 0: as it is)
-- ARGV[2] finish (partitions from here on hold nothing; it only grows; 0: as it is)
-- ARGV[3] lowered (finish that may be lowered to ARGV[2]; 0: none)
-- ARGV[4] closed (1: takes nothing new; 0: takes; -1: as it is)
--
-- Returns {1, partitions, end, 1 when paused or 0} as they are now; {0} no such queue.
-- keys: meta, guard
local partitions, finish, lowered = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local closed = ARGV[4]

-- use: whole

local known = redis.call('HMGET', meta, 'exists', 'partitions', 'partitions_end', 'paused')
if not known[1] then
  return {0}
end
local count, last = whole(known[2]) or 1, whole(known[3]) or 1
if partitions > 0 and partitions ~= count then
  count = partitions
  redis.call('HSET', meta, 'partitions', count)
end
if finish > last or (finish > 0 and lowered == last) then
  last = finish
  redis.call('HSET', meta, 'partitions_end', last)
end
if closed == '1' then
  redis.call('HSET', meta, 'closed', '1')
elseif closed == '0' then
  redis.call('HDEL', meta, 'closed')
end
return {1, count, last, known[4] and 1 or 0}
