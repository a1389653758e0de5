-- Stores the numbers of failed deliveries.
-- keys: deliveries
local function count_failures(leases)
  local counts = {}
  for _, lease in ipairs(leases) do
    counts[#counts + 1] = lease.tag
    counts[#counts + 1] = lease.failed
  end
  if #counts > 0 then
    redis.call('HSET', deliveries, unpack(counts))
  end
end
