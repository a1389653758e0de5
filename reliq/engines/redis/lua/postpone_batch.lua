-- postpone_batch: notes that a batch that has ended is not looked after until long after.
--
-- The list that says when has another slot, and is changed after this. While it is noted, each
-- change by which the batch goes on, or something of it is due, says so to who makes it
-- (change_jobs.lua): whoever sees that has the batch looked after at once, and takes it back.
--
-- KEYS[1] batch (HASH)
-- KEYS[2] guard (STRING)
--
-- ARGV[1] noted (what was noted and is over; "": note it now)
--
-- Returns 1 when it is noted, which is never the same, or 0.
-- Redis 6.2 or newer.
local batch = KEYS[1]
local noted = ARGV[1]

local found = redis.call('HMGET', batch, 'ended', 'due_success', 'due_complete', 'due_failure',
  'postponed')
local before = found[5]
-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', batch, '')
if noted ~= '' then
  if before == noted then -- else it was postponed again since
    redis.call('HDEL', batch, 'postponed')
  end
  return 0
end
if not found[1] or found[2] or found[3] or found[4] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
now = math.max(now, tonumber(string.match(before or '', '^%d+$') or 0) + 1)
redis.call('HSET', batch, 'postponed', string.format('%.0f', now))
return 1
