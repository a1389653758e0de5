-- declare: creates a queue with its arguments, or reports the existing one.
--
-- ARGV[1] passive (1: create nothing)
-- ARGV[2] arguments (msgpack of the declaration, compared byte by byte)
-- ARGV[3..] field, value (pairs for meta: message_ttl, expires, lease, auto_delete ...)
--
-- Returns {0 not found, 1 existed, 2 created, 3 exists with other arguments,
--   ready and delayed messages, consumers, arguments as stored}
-- keys: meta, ready, delayed, consumers, publishers, guard
-- limits: LONG_MS
local passive, arguments = ARGV[1] == '1', ARGV[2]

-- A first write that does not grow: a worker must be able to start, and drain its
-- queues, when memory is full.
redis.call('HDEL', meta, '')
-- clock: now
local stored = redis.call('HMGET', meta, 'exists', 'arguments')
local outcome = 1
if not stored[1] and passive then
  return {0, 0, 0, ''}
end
if not passive then
  if stored[2] and stored[2] ~= arguments then
    outcome = 3
  elseif not stored[2] then
    -- A queue that a publish created has no arguments yet, and gets these.
    redis.call('HSET', meta, 'exists', '1', 'arguments', arguments)
    if #ARGV > 2 then
      redis.call('HSET', meta, unpack(ARGV, 3))
    end
    outcome = stored[1] and 1 or 2
    if outcome == 2 then
      -- If a queue of this name was just deleted, keep its publish numbers.
      redis.call('PEXPIRE', publishers, LONG_MS)
    end
  end
  if outcome ~= 3 then
    redis.call('HSET', meta, 'used_at', now)
  end
end
return {outcome, redis.call('ZCARD', ready) + redis.call('ZCARD', delayed),
  redis.call('HLEN', consumers), stored[2] or arguments}
