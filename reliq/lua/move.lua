-- move: begins or continues a move of dead letters to another queue.
--
-- Each gets a permanent number, by which the target queue identifies it. It stays here until
-- the target has stored it (moved.lua). After a kill, the next move continues, and nothing is
-- stored twice. A move that is unfinished after a day may change its target (a number is the
-- time, in us).
--
-- ARGV[1] target (of the move; messages in an unfinished move to another target are omitted)
-- ARGV[2..] tag (delivery tags of dead letters)
--
-- Returns {low_water, tag, number, envelope, ...}: numbers below low_water are settled.
-- keys: messages, dead, stats, moves, unacked_index, guard
local target = ARGV[1]

-- use: intact, last_number, settled_below, number_of_move

intact({messages, stats}, {dead, unacked_index})
-- begin: HDEL moves
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
