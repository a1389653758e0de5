-- publish: stores messages in one queue, each once, all in one step.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] expiry (ZSET)
-- KEYS[5] dead (ZSET)
-- KEYS[6] dead_info (HASH)
-- KEYS[7] deliveries (HASH)
-- KEYS[8] bell (LIST)
-- KEYS[9] stats (HASH)
-- KEYS[10] meta (HASH)
-- KEYS[11] publisher (ZSET)
-- KEYS[12] bindings (HASH)
--
-- ARGV[1] must_exist (1: refuse a queue that was never declared; 0: create it)
-- ARGV[2] version (of the bindings that the route was found by; empty: do not check)
-- ARGV[3] keep (ms that the publisher's numbers are kept from now; 0: as before)
-- ARGV[4] low (every number below it is settled: it is forgotten, and refused if it comes
--         late all the same; 0: not this time)
-- ARGV[5] dead_letter_max (messages)
-- ARGV[6..] tag, envelope, rank, number, delay, ttl (six for each message: delivery tag;
--   bytes; 0-255, lowest is served first; publish number of this publisher in this queue
--   or 0: not numbered; ms or 0: none; ms or -1: none)
--
-- Returns for each message 1 stored, 2 stored in a queue that this call created,
--   0 was stored before, -1 no such queue, -2 the bindings have changed: nothing was
--   stored, -3 the queue is full (x-overflow reject-publish): it was not stored.
-- Redis 6.2 or newer.
local messages, ready, delayed, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, dead_info, deliveries = KEYS[5], KEYS[6], KEYS[7]
local bell, stats, meta, publisher, bindings = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local must_exist, version, keep, low = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local dead_letter_max = tonumber(ARGV[5])

local outcomes = {}
local queue = redis.call('HMGET', meta,
  'exists', 'message_ttl', 'promoted', 'expires', 'max_length', 'max_bytes')
local refused = nil
if version ~= '' and redis.call('HGET', bindings, 'version') ~= version then
  refused = -2
elseif not queue[1] and must_exist == '1' then
  refused = -1
end
if refused then
  for i = 6, #ARGV, 6 do
    outcomes[#outcomes + 1] = refused
  end
  return outcomes
end
local stored = 1
if not queue[1] then
  redis.call('HSET', meta, 'exists', '1')
  stored = 2
end
local limited, rejects, waiting, bytes = queue[5] or queue[6], false, 0, 0
local max_length, max_bytes
if limited then
  max_length, max_bytes = tonumber(queue[5] or math.huge), tonumber(queue[6] or math.huge)
  rejects = redis.call('HGET', meta, 'overflow') == 'reject-publish'
  waiting = redis.call('ZCARD', ready) + redis.call('ZCARD', delayed)
  bytes = tonumber(redis.call('HGET', stats, 'waiting_bytes') or 0)
end

local now, settled, rang, numbered = nil, nil, false, false
for i = 6, #ARGV, 6 do
  local tag, envelope, rank, number = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local delay, ttl = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  local full = rejects and (waiting + 1 > max_length or bytes + #envelope > max_bytes)
  local outcome = stored
  if number == '0' then
    outcome = full and -3 or stored
  else
    settled = settled or tonumber(redis.call('ZSCORE', publisher, 'low') or 0)
    if tonumber(number) < settled then
      -- The network held this request back until its retry had returned.
      outcome = 0
    elseif full then
      outcome = redis.call('ZSCORE', publisher, number) and 0 or -3
    elseif redis.call('ZADD', publisher, 'NX', number, number) == 0 then
      outcome = 0
    else
      numbered = true
    end
  end
  outcomes[#outcomes + 1] = outcome
  if outcome > 0 then
    if queue[2] and (ttl < 0 or tonumber(queue[2]) < ttl) then
      ttl = tonumber(queue[2])
    end
    -- Publishing and promoting both move the sequence on, so it never repeats.
    local sequence = redis.call('HINCRBY', stats, 'published', 1) + (queue[3] or 0)
    redis.call('HSET', messages, tag, envelope)
    stored = 1
    waiting, bytes = waiting + 1, bytes + #envelope
    if delay > 0 or ttl >= 0 then
      if not now then
        local clock = redis.call('TIME')
        now = clock[1] * 1000 + math.floor(clock[2] / 1000)
      end
      if ttl >= 0 then
        redis.call('ZADD', expiry, now + delay + ttl, tag)
      end
    end
    if delay > 0 then
      redis.call('ZADD', delayed, now + delay, tag)
      -- Only a message that is now the earliest changes how long anyone may sleep.
      rang = rang or redis.call('ZRANK', delayed, tag) == 0
    else
      redis.call('ZADD', ready, rank * 35184372088832 + sequence, tag)
      rang = true
    end
    if queue[6] then
      redis.call('HINCRBY', stats, 'waiting_bytes', #envelope)
    end
  end
end

if numbered then
  if low ~= '0' then
    redis.call('ZREMRANGEBYSCORE', publisher, '-inf', '(' .. low)
    redis.call('ZADD', publisher, 'GT', low, 'low')
  end
  if queue[4] and keep <= 86400000 then
    -- A queue that expires needs to remember its publishers no longer than it lives; a
    -- move may be taken up again later than that, and asks for more.
    keep = math.max(tonumber(queue[4]), 60000)
  end
  if keep > 0 then
    redis.call('PEXPIRE', publisher, keep)
  end
end
if limited and not rejects and (waiting > max_length or bytes > max_bytes) then
  -- drop-head: the oldest of the lowest priority gives way, to the dead letters.
  local clock = redis.call('TIME')
  local died, dropped = clock[1] * 1000 + math.floor(clock[2] / 1000), 0
  while (waiting > max_length or bytes > max_bytes) and dropped < 200 do
    local last = redis.call('ZRANGE', ready, -1, -1, 'WITHSCORES')
    local victim
    if last[1] then
      local rank = math.floor(last[2] / 35184372088832) * 35184372088832
      victim = redis.call('ZRANGEBYSCORE', ready, string.format('%d', rank), '+inf', 'LIMIT', 0, 1)[1]
    else
      victim = redis.call('ZRANGE', delayed, 0, 0)[1]
    end
    if not victim then
      break
    end
    redis.call('ZREM', ready, victim)
    redis.call('ZREM', delayed, victim)
    redis.call('ZREM', expiry, victim)
    redis.call('ZADD', dead, died, victim)
    local count = redis.call('HGET', deliveries, victim) or 0
    redis.call('HSET', dead_info, victim, 'maxlen|' .. count .. '||')
    local size = redis.call('HSTRLEN', messages, victim)
    waiting, bytes, dropped = waiting - 1, bytes - size, dropped + 1
    if queue[6] then
      redis.call('HINCRBY', stats, 'waiting_bytes', -size)
    end
  end
  redis.call('HINCRBY', stats, 'dead_lettered', dropped)
  redis.call('HINCRBY', stats, 'dead:maxlen', dropped)
  local over = math.min(redis.call('ZCARD', dead) - dead_letter_max, 200)
  if over > 0 then
    local surplus = redis.call('ZRANGE', dead, 0, over - 1)
    redis.call('ZREM', dead, unpack(surplus))
    redis.call('HDEL', dead_info, unpack(surplus))
    redis.call('HDEL', deliveries, unpack(surplus))
    redis.call('HDEL', messages, unpack(surplus))
    redis.call('HINCRBY', stats, 'dropped', #surplus)
  end
end
if rang and redis.call('LLEN', bell) == 0 then
  redis.call('RPUSH', bell, '1')
end
return outcomes
