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
--   needs a pass (or ms for which another consumer's pass is valid, or -1: none is needed), its
--   number of partitions, and the first partition number without messages (0: not divided; a
--   divided queue always needs work), a list of flags: 'expired' (messages have expired), 'idle'
--   (its x-expires may have passed), 'gone' (it was deleted, and may still be bound), 'job_events'
--   (they are to be reported to batches)}
local consumer, dead_letter_max, dead_letter_ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local names_shared = ARGV[4]
-- The session of the caller, which is registered as the consumer of a queue.
local session = string.match(consumer, '^(.*)/') or consumer

-- use: whole

-- clock: now

local surveyed = {}
for n = 0, #KEYS - 10, 10 do
  -- keys of each: unacked_index, ready, delayed, expiry, dead, notification, meta, unacked_mutex
  -- keys of each: consumers, job_events
  local needed, shared, flags = false, false, {}
  local partitions, finish = 0, 0
  local function flag(name, holds)
    flags[#flags + 1] = holds and name or nil
  end
  local function examine()
    local about = redis.call('HMGET', meta, 'expires', 'used_at', 'paused', 'dead_letter_exchange', 'exists',
      'partitions', 'partitions_end')
    local expires = whole(about[1])
    partitions, finish = whole(about[6]) or 0, whole(about[7]) or 0
    flag('gone', not about[5])
    flag('idle', about[5] and expires and now - (whole(about[2]) or now) >= expires)
    if names_shared == '1' then
      shared = redis.call('HLEN', consumers) > redis.call('HEXISTS', consumers, session)
    end
    if redis.call('EXISTS', unacked_index, ready, delayed, expiry, dead, job_events) > 0 then
      flag('job_events', redis.call('EXISTS', job_events) == 1)
      local ends = redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]
      local expired = ends and tonumber(ends) <= now
      flag('expired', expired)
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
  needed = not pcall(examine) or needed
  if needed or shared or finish > 0 or #flags > 0 then
    local wait = needed and 0 or -1
    local holder = needed and redis.pcall('GET', unacked_mutex)
    if type(holder) == 'string' and holder ~= consumer then
      wait = math.max(redis.call('PTTL', unacked_mutex), 1)
    end
    surveyed[#surveyed + 1] = {n / 10, wait, partitions, finish, flags}
  end
end
return surveyed
