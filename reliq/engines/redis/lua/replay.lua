-- replay: puts dead letters back into their own queue, with a count of none.
--
-- They queue behind what is ready at their rank now, and have no TTL any more.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] deliveries (HASH)
-- KEYS[4] dead (ZSET)
-- KEYS[5] dead_info (HASH)
-- KEYS[6] notification (LIST)
-- KEYS[7] stats (HASH)
-- KEYS[8] meta (HASH)
-- KEYS[9] moves (HASH)
-- KEYS[10] job_events (ZSET)
-- KEYS[11] guard (STRING)
--
-- ARGV[1..] tag (delivery tags of dead letters)
--
-- Returns the tags that were replayed: not those that are no dead letters any more, or
--   are on their way to another queue since less than a day.
-- Redis 6.2 or newer.
-- limits: RANK, DAY_US, JOB_MARK
local messages, ready, deliveries, dead, dead_info = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local notification, stats, meta, moves = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local job_events = KEYS[10]

-- use: add, notify, bytes_of, intact, whole, head_of_rank, promote, is_moving, without_body
-- use: keep_events

intact({messages, deliveries, dead_info, stats, meta}, {ready, job_events})
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
