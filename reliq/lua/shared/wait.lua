-- Lets messages wait at their old place, or until they are due, with their TTL.
-- use: old_place, whole, count_bytes
-- keys: ready, delayed, expiry
local function wait(leases)
  local tags, scored, later, expiries = {}, {}, {}, {}
  for i = 1, #leases do
    local lease = leases[i]
    local place = lease.due and later or scored
    place[#place + 1] = lease.due or old_place(lease.tag, lease.score)
    place[#place + 1] = lease.tag
    tags[i] = lease.tag
    if whole(lease.expires) then
      expiries[#expiries + 1] = lease.expires
      expiries[#expiries + 1] = lease.tag
    end
  end
  count_bytes(tags, 1)
  if #scored > 0 then
    redis.call('ZADD', ready, unpack(scored))
  end
  if #later > 0 then
    redis.call('ZADD', delayed, unpack(later))
  end
  if #expiries > 0 then
    redis.call('ZADD', expiry, unpack(expiries))
  end
end
