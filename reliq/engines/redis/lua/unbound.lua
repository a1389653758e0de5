-- unbound: deletes the table of an exchange to which nothing is bound.
--
-- Returns 1 deleted, or was not there; 0 when something is bound.
-- keys: bindings, guard

-- One field is the version.
if redis.call('HLEN', bindings) > 1 then
  return 0
end
redis.call('DEL', bindings)
return 1
