-- move: begins to carry dead letters to another queue, or goes on with it.
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
--
-- ARGV[1] target (of the move: the same for all; another begun earlier is not disturbed)
-- ARGV[2..] tag (delivery tags of dead letters)
--
-- Returns {low_water, tag, number, envelope, ...}: below low_water every number is settled.
-- Redis 6.2 or newer.
local messages, dead, stats, moves, unacked_index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local target = ARGV[1]
-- use: DAY_US, whole, intact

-- A key that holds something else is told before the first write.
intact({messages, stats}, {dead, unacked_index})
-- Moves whose message has left in another way (a late ack, the cap) are over.
local begun = redis.call('HGETALL', moves)
-- A first write that does not grow lets the rest run when memory is full.
redis.call('HDEL', moves, '')
-- Numbers keep up with the time: a queue that is made again, or has lost its last writes
-- in a crash, does not repeat them.
local clock = redis.call('TIME')
local last = math.max(clock[1] * 1000000 + clock[2], whole(redis.call('HGET', stats, 'move')) or 0)
redis.call('HSET', stats, 'move', string.format('%d', last))
local low_water = last + 1
local known = {}
for i = 1, #begun, 2 do
  local tag = begun[i]
  local number, to = string.match(begun[i + 1], '^(%d+)|(.*)$')
  number = whole(number)
  if not number then -- no move wrote that: it begins now
    number, to = redis.call('HINCRBY', stats, 'move', 1), target
    redis.call('HSET', moves, tag, string.format('%d|%s', number, target))
  end
  if redis.call('ZSCORE', dead, tag) then
    if to ~= target and last - number > DAY_US then
      redis.call('HSET', moves, tag, string.format('%d|%s', number, target))
      to = target
    end
    known[tag] = {string.format('%d', number), to}
    low_water = math.min(low_water, number)
  elseif redis.call('ZSCORE', unacked_index, tag) == 'inf' then
    -- Held by a move of what waited (move_out.lua), perhaps to the same target.
    low_water = math.min(low_water, number)
  else
    redis.call('HDEL', moves, tag)
  end
end
local result = {string.format('%d', low_water)}
for i = 2, #ARGV do
  local tag = ARGV[i]
  local move = known[tag]
  if not move and redis.call('ZSCORE', dead, tag) then
    move = {string.format('%d', redis.call('HINCRBY', stats, 'move', 1)), target}
    redis.call('HSET', moves, tag, move[1] .. '|' .. target)
  end
  local envelope = move and move[2] == target and redis.call('HGET', messages, tag)
  if envelope then
    result[#result + 1] = tag
    result[#result + 1] = move[1]
    result[#result + 1] = envelope
  end
end
return result
