-- Stores the last failed deliveries, newest first: tag, time, outcome, count and consumer.
-- keys: failed_deliveries
-- limits: FAILURES_KEPT
local function note_failures(entries)
  if #entries > 0 then
    redis.pcall('LPUSH', failed_deliveries, unpack(entries))
    redis.pcall('LTRIM', failed_deliveries, 0, FAILURES_KEPT - 1)
  end
end
