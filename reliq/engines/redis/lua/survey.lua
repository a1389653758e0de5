-- survey: returns the queues of many that need work. It changes nothing.
--
-- One call replaces a pass over each queue, because most queues usually need none.
--
-- ARGV[1] consumer (id of the caller)
-- ARGV[2] dead_letter_max (messages)
-- ARGV[3] dead_letter_ttl (ms)
-- ARGV[4] names_shared ('1' or '0': whether to return queues with other consumers)
--
-- A queue needs a pass if it has unacked messages, or waiting messages without a notification, or
-- dead letters that are too old, too many, or to be routed on.
--
-- Returns for each queue with work, or with other consumers, {its position from 0, 0 when it
--   needs a pass (or ms for which another consumer's pass is valid, or -1: none is needed), 1 when
--   messages have expired or 0, 1 when its x-expires may have passed, or 2 when it was deleted and
--   may still be bound, or 0, its number of partitions, and the first partition number without
--   messages (0: not divided; a divided queue always needs work), 1 when job events are to be
--   reported to batches or 0}
local consumer, dead_letter_max, dead_letter_ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local names_shared = ARGV[4]
-- The session of the caller, which is registered as the consumer of a queue.
local session = string.match(consumer, '^(.*)/') or consumer

-- use: whole

-- clock: now

local found = {}
for n = 0, #KEYS - 10, 10 do
  -- keys of each: unacked_index, ready, delayed, expiry, dead, notification, meta, unacked_mutex
  -- keys of each: consumers, job_events
  local needed, expired, idle, shared, owed = false, false, 0, false, false
  local partitions, finish = 0, 0
  local function look()
    local about = redis.call('HMGET', meta, 'expires', 'used_at', 'paused', 'dead_letter_exchange', 'exists',
      'partitions', 'partitions_end')
    local expires = whole(about[1])
    partitions, finish = whole(about[6]) or 0, whole(about[7]) or 0
    idle = not about[5] and 2 or expires and now - (whole(about[2]) or now) >= expires and 1 or 0
    if names_shared == '1' then
      shared = redis.call('HLEN', consumers) > redis.call('HEXISTS', consumers, session)
    end
    if redis.call('EXISTS', unacked_index, ready, delayed, expiry, dead, job_events) > 0 then
      owed = redis.call('EXISTS', job_events) == 1
      local ends = redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]
      expired = ends and tonumber(ends) <= now
      local died = redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')[2]
      needed = redis.call('EXISTS', unacked_index) == 1
        or about[4] and (died or expired)
        or died and (tonumber(died) <= now - dead_letter_ttl
          or redis.call('ZCARD', dead) > dead_letter_max)
      if not needed and not about[3] and redis.call('LLEN', notification) == 0 then
        local due = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
        needed = redis.call('EXISTS', ready) == 1 or due and tonumber(due) <= now
      end
    end
  end
  -- A queue with a key of the wrong type does not hide the others. Its pass reports the error.
  needed = not pcall(look) or needed
  if needed or expired or idle > 0 or shared or finish > 0 or owed then
    local wait = needed and 0 or -1
    local holder = needed and redis.pcall('GET', unacked_mutex)
    if type(holder) == 'string' and holder ~= consumer then
      wait = math.max(redis.call('PTTL', unacked_mutex), 1)
    end
    found[#found + 1] = {n / 10, wait, expired and 1 or 0, idle, partitions, finish,
      owed and 1 or 0}
  end
end
return found
