-- move: begins to move dead letters to another queue, or goes on with it.
--
-- Each gets a number, once and for all, by which the other queue knows it; it stays
-- here until it is stored there (moved.lua), so whoever is killed in between is
-- continued by the next who asks, and nothing is stored twice. After a day without an
-- end another target may have it (a number is the time, in us).
--
-- ARGV[1] target (of the move: the same for all; another begun earlier is not disturbed)
-- ARGV[2..] tag (delivery tags of dead letters)
--
-- Returns {low_water, tag, number, envelope, ...}: below low_water every number is settled.
-- keys: messages, dead, stats, moves, unacked_index, guard
-- limits: DAY_US
local target = ARGV[1]

-- use: whole, intact, last_number, settled_below, number_of_move

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
