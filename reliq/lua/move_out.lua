-- move_out: takes waiting messages out of the queue, to store them at a target.
--
-- Each gets a permanent number, by which the target identifies it. Until the target has
-- stored it (moved.lua), it is unacked here under a lease of the move that never expires.
-- Only a move to the same target continues with it; after a day, a move to another target
-- may, because the first one seems to be lost (a number is the time, in us).
--
-- ARGV[1] target (of the move)
--
-- Returns {low_water, tag, number, envelope, delay in ms or 0, ttl in ms or -1,
--   failed deliveries or -1, ...}: numbers below low_water are settled.
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, expiry, dead, stats, moves
-- keys: guard
-- limits: MOVED_AT_ONCE
local target = ARGV[1]

-- use: take, lease, whole, intact, lease_of, last_number, settled_below, number_of_move, permitted

intact({messages, unacked, deliveries, stats, moves},
  {ready, delayed, unacked_index, expiry, dead})
permitted(moves, ready)
-- clock: now
local last, begun = last_number(clock), redis.call('HGETALL', moves)
local low_water, going = settled_below(last + 1, begun), {}
for i = 1, #begun, 2 do
  local held = redis.call('ZSCORE', unacked_index, begun[i]) == 'inf'
  if held and #going < MOVED_AT_ONCE and number_of_move(begun[i], last) then
    going[#going + 1] = begun[i]
  end
end

if #going < MOVED_AT_ONCE then
  local waiting = redis.call('ZRANGE', ready, 0, MOVED_AT_ONCE - #going - 1, 'WITHSCORES')
  local place = ready
  if #waiting == 0 then
    waiting = redis.call('ZRANGE', delayed, 0, MOVED_AT_ONCE - #going - 1, 'WITHSCORES')
    place = delayed
  end
  local taken, deadlines, records = {}, {}, {}
  for i = 1, #waiting, 2 do
    local tag = waiting[i]
    local due = place == delayed and waiting[i + 1] or ''
    local expires = redis.call('ZSCORE', expiry, tag) or ''
    number_of_move(tag, last)
    taken[#taken + 1] = tag
    deadlines[i], deadlines[i + 1] = 'inf', tag
    records[i], records[i + 1] = tag, '0|' .. due .. '|' .. expires .. '|move/' .. target
    going[#going + 1] = tag
  end
  if #taken > 0 then
    lease(deadlines, records)
    take(taken)
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
