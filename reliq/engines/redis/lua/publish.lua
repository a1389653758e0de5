-- publish: stores one message, once, in one queue.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] expiry (ZSET)
-- KEYS[5] bell (LIST)
-- KEYS[6] stats (HASH)
-- KEYS[7] meta (HASH)
-- KEYS[8] publisher (ZSET)
-- KEYS[9] bindings (HASH)
--
-- ARGV[1] tag (delivery tag)
-- ARGV[2] envelope (bytes)
-- ARGV[3] rank (0-255, lowest is served first)
-- ARGV[4] number (publish number of this publisher in this queue; 0: not numbered)
-- ARGV[5] low (every number below it is settled and is forgotten; 0: not this time)
-- ARGV[6] delay (ms; 0: none)
-- ARGV[7] ttl (ms; -1: none)
-- ARGV[8] must_exist (1: refuse a queue that was never declared; 0: create it)
-- ARGV[9] keep (ms that the publisher's numbers are kept from now; 0: as before)
-- ARGV[10] version (of the bindings that the route was found by; empty: do not check)
--
-- Returns 1 stored, 2 stored in a queue that this call created, 0 was stored before,
--   -1 no such queue, -2 the bindings have changed: nothing was stored.
-- Redis 6.2 or newer.
local messages, ready, delayed, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local bell, stats, meta, publisher, bindings = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local tag, envelope, rank, number, low = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local delay, ttl, must_exist, keep = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local version = ARGV[10]

if version ~= '' and redis.call('HGET', bindings, 'version') ~= version then
  return -2
end
local queue = redis.call('HMGET', meta, 'exists', 'message_ttl', 'promoted', 'expires')
if not queue[1] then
  if must_exist == '1' then
    return -1
  end
  redis.call('HSET', meta, 'exists', '1')
end
local stored = queue[1] and 1 or 2
if number ~= '0' then
  if redis.call('ZADD', publisher, 'NX', number, number) == 0 then
    return 0
  end
  if low ~= '0' then
    redis.call('ZREMRANGEBYSCORE', publisher, '-inf', '(' .. low)
  end
  if queue[4] then
    -- A queue that expires needs to remember its publishers no longer than it lives.
    keep = math.max(tonumber(queue[4]), 60000)
  end
  if keep > 0 then
    redis.call('PEXPIRE', publisher, keep)
  end
end
if queue[2] and (ttl < 0 or tonumber(queue[2]) < ttl) then
  ttl = tonumber(queue[2])
end

-- Publishing and promoting both move the sequence on, so it never repeats.
local sequence = redis.call('HINCRBY', stats, 'published', 1) + (queue[3] or 0)
redis.call('HSET', messages, tag, envelope)
if delay > 0 or ttl >= 0 then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if ttl >= 0 then
    redis.call('ZADD', expiry, now + delay + ttl, tag)
  end
  if delay > 0 then
    redis.call('ZADD', delayed, now + delay, tag)
    -- Only a message that is now the earliest changes how long anyone may sleep.
    if redis.call('ZRANK', delayed, tag) == 0 and redis.call('LLEN', bell) == 0 then
      redis.call('RPUSH', bell, '1')
    end
    return stored
  end
end
redis.call('ZADD', ready, rank * 35184372088832 + sequence, tag)
if redis.call('LLEN', bell) == 0 then
  redis.call('RPUSH', bell, '1')
end
return stored
