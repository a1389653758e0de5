-- kombu_take_unacked: takes messages that Kombu's consumers have left unacked.
--
-- They are held as in kombu_take.lua, which returns them next. A message that was acked,
-- restored or redelivered in the meantime is not taken.
--
-- ARGV[1] target (of the move)
-- ARGV[2] age (minimum age of the delivery, in s)
-- ARGV[3..] tag, queue (pairs: Kombu's delivery tag; target queue. A message for several
--   queues has consecutive pairs, one for each)
--
-- Returns the number of messages taken.
-- keys: kombu_held, kombu_last, unacked, unacked_index
-- limits: MOVES_KEPT_MS
local target, age = ARGV[1], tonumber(ARGV[2])

-- use: last_held, hold

-- begin: HDEL kombu_held
local clock = redis.call('TIME')
local last = last_held(clock)
local before = clock[1] + clock[2] / 1000000 - age
local taken, tag, message = 0, nil, nil
local done = {}
for i = 3, #ARGV, 2 do
  local queue = ARGV[i + 1]
  if ARGV[i] ~= tag then
    tag = ARGV[i]
    message = redis.call('HGET', unacked, tag)
    local delivered = redis.call('ZSCORE', unacked_index, tag)
    if not message or not delivered or tonumber(delivered) > before then
      message = nil
    else
      taken = taken + 1
      done[#done + 1] = tag
    end
  end
  if message then
    last = last + 1
    hold(last, queue, message)
  end
end
if taken > 0 then
  redis.call('HDEL', unacked, unpack(done))
  redis.call('ZREM', unacked_index, unpack(done))
  redis.call('SET', kombu_last, string.format('%d', last), 'PX', MOVES_KEPT_MS)
end
return taken
