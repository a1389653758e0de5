-- note_callback: records that a callback of a batch was published.
--
-- ARGV[1] callback (success, complete or failure)
--
-- Returns 1 when it was pending or 0.
-- keys: batch, guard
local callback = ARGV[1]

local since = redis.call('HGET', batch, 'due_' .. callback)
if not since then
  return 0
end
-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', batch, 'due_' .. callback)
redis.call('HSET', batch, 'said_' .. callback, since)
return 1
