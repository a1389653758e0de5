-- open_batch: makes a batch, to which jobs can be added.
--
-- ARGV[1] name (of its kind, for people)
-- ARGV[2] created (when it was listed, in ms: the list has another slot)
-- ARGV[3..] field, value (what its producer notes with it)
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
