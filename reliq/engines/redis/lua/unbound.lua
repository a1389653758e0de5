-- unbound: deletes the table of an exchange to which nothing is bound.
--
-- KEYS[1] bindings (HASH)
-- KEYS[2] guard (STRING)
--
-- ARGV[1] most (bindings that it may have: 0)
--
-- Returns 1 deleted, or was not there; 0 when something is bound.
-- Redis 6.2 or newer.
local bindings = KEYS[1]
local most = tonumber(ARGV[1])

-- One field is the version.
if redis.call('HLEN', bindings) > most + 1 then
  return 0
end
redis.call('DEL', bindings)
return 1
