-- schedule_batch: sets when a batch is to be looked after next.
--
-- KEYS[1] batches (ZSET)
-- KEYS[2] guard (STRING)
--
-- ARGV[1] id (of the batch)
-- ARGV[2] seen (when it was to be, as it was read; another time stays; "": whatever it is)
-- ARGV[3] at (ms; with no seen it is at once)
--
-- Returns 1 when it is set or 0.
-- Redis 6.2 or newer.
local batches = KEYS[1]
local id, seen, at = ARGV[1], ARGV[2], tonumber(ARGV[3])

local known = redis.call('ZSCORE', batches, id)
if not known or seen ~= '' and known ~= seen then
  return 0
end
if seen == '' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- Never what it was: so who has seen that does not postpone it.
  at = math.min(now, tonumber(known) - 1)
end
-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', batches, '')
redis.call('ZADD', batches, 'XX', string.format('%.0f', at), id)
return 1
