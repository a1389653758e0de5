-- replay: makes dead letters ready in their own queue, with a delivery count of 0.
--
-- They follow the messages that are ready at their rank, and have no TTL.
--
-- ARGV[1..] tag (delivery tags of dead letters)
--
-- Returns the tags that were replayed. Others are no longer dead letters, or in a move that
--   began less than a day ago.
-- keys: messages, ready, deliveries, dead, dead_info, stats, meta, moves, job_events, guard

-- use: add, notify, bytes_of, intact, promote, is_moving, keep_events, permitted

intact({messages, deliveries, dead_info, stats, meta}, {ready, job_events})
permitted(stats, ready)
local replayed = {}
local died = redis.call('ZMSCORE', dead, unpack(ARGV))
local moving = redis.call('HMGET', moves, unpack(ARGV))
local clock = redis.call('TIME')
for i, tag in ipairs(ARGV) do
  if died[i] and not is_moving(moving[i], clock) then
    replayed[#replayed + 1] = tag
  end
end
if #replayed == 0 then
  return replayed
end
redis.call('ZREM', dead, unpack(replayed))
redis.call('HDEL', moves, unpack(replayed))
keep_events(replayed, 'waits', '', '')
redis.call('HDEL', dead_info, unpack(replayed))
redis.call('HDEL', deliveries, unpack(replayed))
promote(replayed)
if redis.call('HEXISTS', meta, 'max_bytes') == 1 then
  add(stats, 'waiting_bytes', bytes_of(replayed))
end
add(stats, 'replayed', #replayed)
notify()
return replayed
