-- Stores the numbers of failed deliveries that are known.
-- keys: deliveries
local function count_failures(leases)
  local counts, n = {}, 0
  for i = 1, #leases do
    if leases[i].failed then
      counts[n + 1], counts[n + 2] = leases[i].tag, leases[i].failed
      n = n + 2
    end
  end
  if n > 0 then
    redis.call('HSET', deliveries, unpack(counts))
  end
end
