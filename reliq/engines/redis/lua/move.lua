-- move: begins to move dead letters to another queue, or goes on with it.
--
-- Each gets a number, once and for all, by which the other queue knows it; it stays
-- here until it is stored there (moved.lua), so whoever is killed in between is
-- continued by the next who asks, and nothing is stored twice. After a day without an
-- end another target may have it (a number is the time, in us).
--
-- KEYS[1] messages (HASH)
-- KEYS[2] dead (ZSET)
-- KEYS[3] stats (HASH)
-- KEYS[4] moves (HASH)
-- KEYS[5] unacked_index (ZSET)
-- KEYS[6] guard (STRING)
--
-- ARGV[1] target (of the move: the same for all; another begun earlier is not disturbed)
-- ARGV[2..] tag (delivery tags of dead letters)
--
-- Returns {low_water, tag, number, envelope, ...}: below low_water every number is settled.
-- Redis 6.2 or newer.
-- limits: DAY_US
local messages, dead, stats, moves, unacked_index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local target = ARGV[1]

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

intact({messages, stats}, {dead, unacked_index})
-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', moves, '')
local last = last_number(redis.call('TIME'))
local result = {string.format('%d', settled_below(last + 1, redis.call('HGETALL', moves)))}
for i = 2, #ARGV do
  local tag = ARGV[i]
  local number = redis.call('ZSCORE', dead, tag) and number_of_move(tag, last)
  local envelope = number and redis.call('HGET', messages, tag)
  if envelope then
    result[#result + 1] = tag
    result[#result + 1] = string.format('%d', number)
    result[#result + 1] = envelope
  end
end
return result
