-- Returns for each message its failures (failures_of), and the parts of its lease record.
-- use: lease_of, failures_of
-- keys: unacked
local function read_leases(tags)
  local leases, records = failures_of(tags), redis.call('HMGET', unacked, unpack(tags))
  for i = 1, #leases do
    local lease = leases[i]
    lease.token, lease.score, lease.expires, lease.owner = lease_of(records[i])
    lease.owner = lease.owner or ''
  end
  return leases
end
