-- Stores the last failed deliveries, newest first: tag, time, outcome, count and consumer.
-- keys: failed_deliveries
-- limits: FAILURES_KEPT
local function note_failures(leases, outcome)
  local entries, at = {}, string.format('%.0f', now)
  for i = 1, #leases do
    local lease = leases[i]
    entries[i] = table.concat({lease.tag, at, outcome, lease.failed or 0, lease.owner}, '|')
  end
  if #entries > 0 then
    redis.pcall('LPUSH', failed_deliveries, unpack(entries))
    redis.pcall('LTRIM', failed_deliveries, 0, FAILURES_KEPT - 1)
  end
end
