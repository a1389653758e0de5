-- unbound: deletes the table of an exchange without bindings.
--
-- Returns 1 deleted or missing; 0 when there are bindings.
-- keys: bindings, guard

-- One field is the version.
if redis.call('HLEN', bindings) > 1 then
  return 0
end
redis.call('DEL', bindings)
return 1
