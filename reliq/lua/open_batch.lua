-- open_batch: creates a batch, to which jobs can be added.
--
-- ARGV[1] name (of its kind, for display)
-- ARGV[2] created (time of its entry in the list, in ms: the list is in another slot)
-- ARGV[3..] field, value (pairs that its producer stores with it)
--
-- Returns 1 when it is new or 0.
-- keys: batch, guard
local name, created = ARGV[1], ARGV[2]

if redis.call('HEXISTS', batch, 'created') == 1 then
  return 0
end
local fields = {}
for i = 3, #ARGV, 2 do
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
end
redis.call('HSET', batch, 'created', created, 'name', name, unpack(fields))
return 1
