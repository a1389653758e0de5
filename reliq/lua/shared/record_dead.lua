-- Records dead letters, and counts them.
-- use: add
-- keys: dead, dead_info, stats
local function record_dead(leases, reason, err)
  local scored, infos = {}, {}
  for i, lease in ipairs(leases) do
    scored[2 * i - 1] = lease.died or now
    scored[2 * i] = lease.tag
    infos[2 * i - 1] = lease.tag
    infos[2 * i] = table.concat({reason, lease.failed or 0, lease.owner, err}, '|')
  end
  redis.call('ZADD', dead, unpack(scored))
  redis.call('HSET', dead_info, unpack(infos))
  add(stats, 'dead_lettered', #leases)
  add(stats, 'dead:' .. reason, #leases)
end
