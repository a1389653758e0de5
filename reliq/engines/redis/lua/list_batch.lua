-- list_batch: enters a batch in the list of all, by its age and to be looked after.
--
-- ARGV[1] id (of the batch)
--
-- Returns when it was entered first, in ms.
-- keys: batches, batches_opened, guard
local id = ARGV[1]

local opened = redis.call('ZSCORE', batches_opened, id)
local listed = redis.call('ZSCORE', batches, id)
if not opened then
  local time = redis.call('TIME')
  opened = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('ZADD', batches_opened, opened, id)
end
if not listed then
  redis.call('ZADD', batches, opened, id)
end
return tonumber(opened)
