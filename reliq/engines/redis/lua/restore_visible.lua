-- restore_visible: returns messages whose lease has ended, oldest first.
--
-- One pass per interval, however many consumers ask: the mutex lapses by itself.
-- A failed delivery is counted; at the limit the message is dead-lettered instead.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] unacked_index (ZSET)
-- KEYS[4] unacked (HASH)
-- KEYS[5] deliveries (HASH)
-- KEYS[6] expiry (ZSET)
-- KEYS[7] dead (ZSET)
-- KEYS[8] dead_info (HASH)
-- KEYS[9] bell (LIST)
-- KEYS[10] stats (HASH)
-- KEYS[11] meta (HASH)
-- KEYS[12] consumers (HASH)
-- KEYS[13] unacked_mutex (STRING)
--
-- ARGV[1] consumer (id of who asks)
-- ARGV[2] interval (ms that the mutex is kept from others; 0: a pass that does not wait
--         its turn, for leases that were ended just now)
-- ARGV[3] batch (messages at most)
-- ARGV[4] delivery_limit (failed deliveries; 0: no limit)
-- ARGV[5] dead_letter_max (messages)
-- ARGV[6] dead_letter_ttl (ms)
-- ARGV[7] lease (ms)
--
-- Returns {1 granted or 0 refused, 1 when more are waiting (refused: ms until it is
--   worth asking again), unacked messages left,
--   dead-lettered tags, {consumer, restored, ...} by whose lease ended,
--   ids of all consumers of the queue}
-- Redis 6.2 or newer.
local messages, ready, unacked_index, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local deliveries, expiry, dead, dead_info = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local bell, stats, meta, consumers, mutex = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local consumer, interval, batch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local delivery_limit, dead_letter_max = tonumber(ARGV[4]), tonumber(ARGV[5])
local dead_letter_ttl, lease = tonumber(ARGV[6]), tonumber(ARGV[7])

-- A first write that does not grow lets the rest run when memory is full.
redis.call('ZREM', unacked_index, '')
if interval ~= '0' and not redis.call('SET', mutex, consumer, 'NX', 'PX', interval) then
  if redis.call('GET', mutex) ~= consumer then
    return {0, redis.call('PTTL', mutex), 0, {}, {}, {}}
  end
  redis.call('PEXPIRE', mutex, interval)
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
lease = tonumber(redis.call('HGET', meta, 'lease') or lease)
-- No lease runs out sooner than one lease after the server came back: while it was
-- away nobody could renew. Leases that were ended (0) do not wait for that. Where
-- INFO is refused the uptime counts as long.
local info = redis.pcall('INFO', 'server')
local uptime = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)')
local until_ms = now
if uptime and tonumber(uptime) * 1000 < lease then
  until_ms = 0
end
local ended = redis.call('ZRANGEBYSCORE', unacked_index, '-inf', until_ms, 'LIMIT', 0, batch)

local gone, restored = {}, {}
if #ended > 0 then
  local records = redis.call('HMGET', unacked, unpack(ended))
  local counts = redis.call('HMGET', deliveries, unpack(ended))
  local scored, counted, expires, died, infos, owners = {}, {}, {}, {}, {}, {}
  local suspects = {}
  for i, tag in ipairs(ended) do
    local _, score, expire, owner = string.match(records[i], '^(%d+)|([^|]*)|([^|]*)|(.*)$')
    if suspects[owner] == nil then
      suspects[owner] = redis.call('HGET', meta, 'suspect:' .. owner)
    end
    -- A consumer that held a suspect failed because of it, not of what lay beside it.
    local blamed = not suspects[owner] or suspects[owner] == tag
    local count = tonumber(counts[i] or 0) + (blamed and 1 or 0)
    counted[#counted + 1] = tag
    counted[#counted + 1] = count
    owners[owner] = (owners[owner] or 0) + 1
    if blamed and delivery_limit > 0 and count >= delivery_limit then
      died[#died + 1] = now
      died[#died + 1] = tag
      infos[#infos + 1] = tag
      infos[#infos + 1] = 'delivery_limit|' .. count .. '|' .. owner .. '|lease ended'
      gone[#gone + 1] = tag
    else
      scored[#scored + 1] = score
      scored[#scored + 1] = tag
      if expire ~= '' then
        expires[#expires + 1] = expire
        expires[#expires + 1] = tag
      end
    end
  end
  redis.call('HSET', deliveries, unpack(counted))
  if #scored > 0 then
    redis.call('ZADD', ready, unpack(scored))
  end
  if #expires > 0 then
    redis.call('ZADD', expiry, unpack(expires))
  end
  if #died > 0 then
    redis.call('ZADD', dead, unpack(died))
    redis.call('HSET', dead_info, unpack(infos))
    redis.call('HINCRBY', stats, 'dead_lettered', #gone)
  end
  redis.call('ZREM', unacked_index, unpack(ended))
  redis.call('HDEL', unacked, unpack(ended))
  redis.call('HINCRBY', stats, 'restored', #ended - #gone)
  for owner, number in pairs(owners) do
    restored[#restored + 1] = owner
    restored[#restored + 1] = number
  end
end
-- Also makes up for a bell token that was lost with the consumer it had woken.
if redis.call('LLEN', bell) == 0 and redis.call('EXISTS', ready) == 1 then
  redis.call('RPUSH', bell, '1')
end

-- The stated cap of the dead letters: oldest out first, counted as dropped.
local surplus = redis.call('ZRANGEBYSCORE', dead, '-inf', now - dead_letter_ttl, 'LIMIT', 0, batch)
if #surplus == 0 then
  local over = redis.call('ZCARD', dead) - dead_letter_max
  if over > 0 then
    surplus = redis.call('ZRANGE', dead, 0, math.min(over, batch) - 1)
  end
end
if #surplus > 0 then
  redis.call('ZREM', dead, unpack(surplus))
  redis.call('HDEL', dead_info, unpack(surplus))
  redis.call('HDEL', deliveries, unpack(surplus))
  redis.call('HDEL', messages, unpack(surplus))
  redis.call('HINCRBY', stats, 'dropped', #surplus)
end

local more = (#ended == batch or #surplus == batch) and 1 or 0
return {1, more, redis.call('ZCARD', unacked_index), gone, restored,
  redis.call('HKEYS', consumers)}
