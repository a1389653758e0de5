-- move_out: takes waiting messages out of the queue's order, to be stored elsewhere.
--
-- Each gets a number, once and for all, by which the other place knows it. Until it is
-- stored there (moved.lua) it is unacked here, held by the move and by no consumer,
-- without an end: only a move to the same target goes on with it, or, after a day, one
-- to another, since that target seems not to come back (a number is the time, in us).
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] unacked (HASH)
-- KEYS[6] deliveries (HASH)
-- KEYS[7] expiry (ZSET)
-- KEYS[8] dead (ZSET)
-- KEYS[9] stats (HASH)
-- KEYS[10] moves (HASH)
-- KEYS[11] guard (STRING)
--
-- ARGV[1] target (of the move)
-- ARGV[2] batch (messages at most)
--
-- Returns {low_water, tag, number, envelope, delay in ms or 0, ttl in ms or -1,
--   failed deliveries or -1, ...}: below low_water every number is settled.
-- Redis 6.2 or newer.
-- limits: DAY_US
local messages, ready, delayed, unacked_index, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, expiry, dead, stats, moves = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local target, batch = ARGV[1], tonumber(ARGV[2])

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Returns the whole number that a text says; nil where it says none, so was written by another.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
end

-- Raises where one of these keys holds something else, before the first write.
local function intact(hashes, zsets)
  for _, key in ipairs(hashes) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs(zsets) do
    redis.call('ZCARD', key)
  end
end

-- Returns token, score, expires and consumer of a lease record; nil of another text.
local function lease_of(record)
  return string.match(record or '', '^(%d+)|([^|]*)|([^|]*)|(.*)$')
end

-- Numbers keep up with the time: a queue that is made again, or has lost its last writes in a
-- crash, does not repeat them. Returns the last one.
local function last_number(clock)
  local before = whole(redis.call('HGET', stats, 'move')) or 0
  local last = math.max(clock[1] * 1000000 + clock[2], before)
  redis.call('HSET', stats, 'move', string.format('%d', last))
  return last
end

-- Returns low_water, below which every number is settled. A move whose message has left in
-- another way (a late ack, the cap) is over.
local function settled_below(low_water, begun)
  for i = 1, #begun, 2 do
    local tag, number = begun[i], whole(string.match(begun[i + 1], '^(%d+)|'))
    local held = redis.call('ZSCORE', unacked_index, tag) == 'inf'
    if held or redis.call('ZSCORE', dead, tag) then
      low_water = math.min(low_water, number or low_water)
    else
      redis.call('HDEL', moves, tag)
    end
  end
  return low_water
end

-- Returns the number of a message's move to the target: it keeps the first that it got. None
-- while it moves to another target, for a day: that one seems not to come back then.
local function number_of_move(tag, last)
  local begun, to = string.match(redis.call('HGET', moves, tag) or '', '^(%d+)|(.*)$')
  local number = whole(begun)
  if number and to ~= target and last - number <= DAY_US then
    return nil
  end
  number = number or redis.call('HINCRBY', stats, 'move', 1)
  redis.call('HSET', moves, tag, string.format('%d|%s', number, target))
  return number
end

intact({messages, unacked, deliveries, stats, moves},
  {ready, delayed, unacked_index, expiry, dead})
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', moves, '')
local last, begun = last_number(clock), redis.call('HGETALL', moves)
local low_water, going = settled_below(last + 1, begun), {}
for i = 1, #begun, 2 do
  local held = redis.call('ZSCORE', unacked_index, begun[i]) == 'inf'
  if held and #going < batch and number_of_move(begun[i], last) then
    going[#going + 1] = begun[i]
  end
end

if #going < batch then
  local waiting = redis.call('ZRANGE', ready, 0, batch - #going - 1, 'WITHSCORES')
  local place = ready
  if #waiting == 0 then
    waiting = redis.call('ZRANGE', delayed, 0, batch - #going - 1, 'WITHSCORES')
    place = delayed
  end
  local bytes = 0
  for i = 1, #waiting, 2 do
    local tag = waiting[i]
    local due = place == delayed and waiting[i + 1] or ''
    local expires = redis.call('ZSCORE', expiry, tag) or ''
    redis.call('ZREM', place, tag)
    redis.call('ZREM', expiry, tag)
    number_of_move(tag, last)
    redis.call('ZADD', unacked_index, 'inf', tag)
    redis.call('HSET', unacked, tag, '0|' .. due .. '|' .. expires .. '|move/' .. target)
    bytes = bytes + redis.call('HSTRLEN', messages, tag)
    going[#going + 1] = tag
  end
  if bytes > 0 and redis.call('HEXISTS', stats, 'waiting_bytes') == 1 then
    add(stats, 'waiting_bytes', -bytes)
  end
end

local result = {string.format('%d', low_water)}
for _, tag in ipairs(going) do
  local number = string.match(redis.call('HGET', moves, tag), '^%d+')
  local _, due, expires = lease_of(redis.call('HGET', unacked, tag))
  due, expires = whole(due), whole(expires)
  result[#result + 1] = tag
  result[#result + 1] = number
  result[#result + 1] = redis.call('HGET', messages, tag)
  result[#result + 1] = due and math.max(due - now, 0) or 0
  result[#result + 1] = expires and math.max(expires - now, 0) or -1
  result[#result + 1] = whole(redis.call('HGET', deliveries, tag)) or -1
end
return result
