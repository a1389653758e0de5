-- open_batch: makes a batch, to which jobs can be added.
--
-- KEYS[1] batch (HASH)
-- KEYS[2] guard (STRING)
--
-- ARGV[1] name (of its kind, for people)
-- ARGV[2..] field, value (what its producer notes with it)
--
-- Returns {1 when it is new or 0, when it was made, in ms}.
-- Redis 6.2 or newer.
local batch = KEYS[1]
local name = ARGV[1]

local created = redis.call('HGET', batch, 'created')
if created then
  return {0, tonumber(created)}
end
local time = redis.call('TIME')
created = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', batch, 'created', string.format('%.0f', created), 'name', name)
for i = 2, #ARGV, 2 do
  redis.call('HSET', batch, ARGV[i], ARGV[i + 1])
end
return {1, created}
