-- layout: returns the partitions of a queue, or changes the settings of one partition.
--
-- ARGV[1] partitions (number of partitions to publish to; 0: unchanged)
-- ARGV[2] finish (first partition number without messages; it only grows; 0: unchanged)
-- ARGV[3] lowered (present finish that may be lowered to ARGV[2]; 0: none)
-- ARGV[4] closed (1: accepts no new messages; 0: accepts them; -1: unchanged)
--
-- Returns {1, partitions, end, 1 when paused or 0} after the change; {0} no such queue.
-- keys: meta, guard
local partitions, finish, lowered = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local closed = ARGV[4]

-- use: whole

local known = redis.call('HMGET', meta, 'exists', 'partitions', 'partitions_end', 'paused')
if not known[1] then
  return {0}
end
local count, last = whole(known[2]) or 1, whole(known[3]) or 1
if partitions > 0 or finish > 0 or closed == '1' then
  -- begin: HDEL meta
end
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
