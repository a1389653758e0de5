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
-- use: intact, begun_moves, begin_move

-- A key that holds something else is told before the first write.
intact({messages, stats}, {dead, unacked_index})
local low_water, begun = begun_moves(target, false, redis.call('TIME'))
local known = {}
for _, move in ipairs(begun) do
  known[move[1]] = move
end
local result = {string.format('%d', low_water)}
for i = 2, #ARGV do
  local tag = ARGV[i]
  local move = known[tag]
  if not move and redis.call('ZSCORE', dead, tag) then
    move = {tag, begin_move(tag, target), target}
  end
  local envelope = move and move[3] == target and redis.call('HGET', messages, tag)
  if envelope then
    result[#result + 1] = tag
    result[#result + 1] = move[2]
    result[#result + 1] = envelope
  end
end
return result
