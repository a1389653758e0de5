-- list_batch: adds a batch to the lists of all batches: by age, and by the next check.
--
-- ARGV[1] id (of the batch)
--
-- Returns the time of its first entry, in ms.
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
