-- restore_visible: returns messages whose lease has ended, oldest first.
--
-- A mutex with an expiry permits one pass per interval, for any number of consumers. If it lasts
-- for more than four intervals, it was set before the server's clock was set back.
-- Each failed delivery is counted, and the message may wait (back-off). A delivery that was not
-- isolated raises the count at most to the limit less one. At the limit, after an isolated
-- delivery (which the mark of its consumer records), the message is dead-lettered. A message that
-- was acked when its task began does not return: it is finished.
--
-- ARGV[1] consumer (id of the caller)
-- ARGV[2] interval (ms for which the mutex excludes others; 0: a pass without the mutex,
--         for leases that were just ended)
-- ARGV[3] delivery_limit (failed deliveries; 0: no limit; the queue's own takes precedence)
-- ARGV[4] dead_letter_max (messages)
-- ARGV[5] dead_letter_ttl (ms)
-- ARGV[6] lease (ms)
-- ARGV[7] backoff_min (ms that a message waits after its first failure; 0: none)
-- ARGV[8] backoff_max (ms)
-- ARGV[9] detailed (1: return each restored message with its envelope; 0: only the numbers)
--
-- Returns {1 granted or 0 refused, 1 when another step is needed (refused: ms until the next
--   pass), unacked messages left,
--   {consumer, number of its ended leases, ...},
--   {tag, count, consumer, envelope or "", ...} of the restored if detailed,
--   the same of the dead-lettered, ids of all consumers of the queue,
--   number of dead letters to route on}
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info
-- keys: stats, meta, consumers, unacked_mutex, job_events, guard
-- limits: BATCH
local consumer, interval, delivery_limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local dead_letter_max, dead_letter_ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local lease, detailed = tonumber(ARGV[6]), ARGV[9] == '1'
local backoff_min, backoff_max = tonumber(ARGV[7]), tonumber(ARGV[8])

-- clock: now
-- use: add, whole, notify, intact, leave, unbury, trim_dead, marks_of, read_leases, backoff
-- use: forget_marks, count_failures, note_failures, bury, wait, end_leases, finish_begun

intact({messages, unacked, deliveries, dead_info, stats, meta, consumers},
  {ready, delayed, expiry, dead, job_events})
-- begin: ZREM unacked_index
if interval ~= '0' and not redis.call('SET', unacked_mutex, consumer, 'NX', 'PX', interval) then
  local left = redis.call('PTTL', unacked_mutex)
  if redis.call('GET', unacked_mutex) ~= consumer and left <= 4 * interval then
    return {0, left, 0, {}, {}, {}, {}, 0}
  end
  redis.call('SET', unacked_mutex, consumer, 'PX', interval)
end

local own_lease, own_limit, dead_letter_exchange, paused, known_run, run_since,
  passed, pass_due, spared_from, spared_until = unpack(redis.call('HMGET', meta, 'lease',
  'delivery_limit', 'dead_letter_exchange', 'paused', 'run', 'run_since',
  'passed', 'pass_due', 'spared_from', 'spared_until'))
lease = whole(own_lease) or lease
delivery_limit = whole(own_limit) or delivery_limit
local known = redis.call('EXISTS', meta) == 1

-- Returns the later of two times: the server's start, and the first pass over this queue after a
-- replacement of the server. Ignores the start if INFO is refused, or if the uptime is negative
-- because the clock was set back.
local function serving_since()
  local since, started = whole(run_since) or 0, 0
  local info = redis.pcall('INFO', 'server')
  if type(info) == 'string' and string.find(info, 'run_id:') then
    local run = string.match(info, 'run_id:(%x+)')
    local uptime = string.match(info, 'uptime_in_seconds:(%d+)')
    started = uptime and now - uptime * 1000 or 0
    if known_run ~= run and known then
      since = known_run and now or since
      redis.call('HSET', meta, 'run', run, 'run_since', since)
      -- A message of an isolated delivery may have been acked while the server was down. Such a
      -- delivery does not count: the message gets another isolated one.
      for field, tag in pairs(known_run and marks_of('') or {}) do
        redis.call('HSET', meta, field, tag)
      end
    end
  end
  if since > now then
    since = 0 -- the clock was set back
  end
  return math.max(since, started)
end

-- Records this pass. If it is the first, or long overdue, the server was frozen and has not read
-- renewals that were sent in time, or no consumer ran a pass. A living consumer renews within half
-- a lease from now, so leases that expired after the previous pass are spared until then. Earlier
-- ones had time for a renewal. Returns from when leases are spared, and until when.
local function note_pass()
  local before, from, till = whole(passed) or 0, whole(spared_from) or 0, whole(spared_until) or 0
  if before > now then
    till = 0
  elseif now > (whole(pass_due) or 0) then
    from, till = before, now + math.floor(lease / 2)
  end
  if known and interval ~= '0' then
    local due = math.min(interval * 3 / 2 + lease / 6, lease * 2 / 3)
    redis.call('HSET', meta, 'passed', now, 'pass_due', now + math.floor(due),
      'spared_from', from, 'spared_until', till)
  end
  return from, till
end

-- Returns the latest deadline of a lease that counts as expired. None expires within one lease
-- of the server's start or replacement, because no consumer could renew before. This does not
-- apply to ended leases (deadline 0).
local function expiry_cutoff()
  local since = serving_since()
  local from, till = note_pass()
  if now - since < lease then
    return 0
  elseif known and now < till then
    return from
  end
  return now
end

local by_consumer, restored, died = {}, {}, {}

-- Counts the failures, and returns each message to its place, into back-off, or, after its last,
-- isolated delivery, to the dead letters.
local function return_expired(ended)
  local envelopes = detailed and redis.call('HMGET', messages, unpack(ended)) or {}
  local leases, marks, held = read_leases(ended), {}, {}
  local back, dead_ones, later = {}, {}, false
  for i = 1, #leases do
    leases[i].envelope = envelopes[i] or ''
  end
  leases = finish_begun(leases)
  for i = 1, #leases do
    local lease = leases[i]
    local owner, before = lease.owner, lease.failed or 0
    held[owner] = (held[owner] or 0) + 1
    if marks[owner] == nil then
      marks[owner] = redis.call('HGET', meta, 'candidate:' .. owner)
    end
    local failed = before + 1
    local last = delivery_limit > 0 and failed >= delivery_limit
    local alone = last and marks[owner] == lease.tag .. '|isolated'
    if last and not alone then
      failed = math.max(before, delivery_limit - 1)
    end
    lease.failed = failed
    local report = detailed and restored
    if alone then
      dead_ones[#dead_ones + 1] = lease
      report = died
    else
      lease.due = backoff(failed)
      later = later or lease.due
      back[#back + 1] = lease
    end
    if report then
      report[#report + 1] = lease.tag
      report[#report + 1] = failed
      report[#report + 1] = owner
      report[#report + 1] = lease.envelope
    end
  end
  for owner, number in pairs(held) do
    by_consumer[#by_consumer + 1] = owner
    by_consumer[#by_consumer + 1] = number
  end
  count_failures(leases)
  wait(back)
  if later then
    notify()
  end
  bury(dead_ones, 'delivery_limit', 'lease ended')
  note_failures(leases, 'lapsed')
  end_leases(ended)
  add(stats, 'restored', #back)
  add(stats, 'lapsed', #leases)
end

local ended = redis.call('ZRANGEBYSCORE', unacked_index, '-inf', expiry_cutoff(), 'LIMIT', 0, BATCH)
if #ended > 0 then
  return_expired(ended)
end
if #ended < BATCH then
  -- Their messages were just returned, or acked by a consumer that reserves no more.
  forget_marks('')
end
-- Also replaces a notification, or the knowledge of due messages, that was lost with a consumer.
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
local waiting = redis.call('EXISTS', ready) == 1 or (head[2] and tonumber(head[2]) <= now)
if waiting and not paused then
  notify()
end
local too_old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - dead_letter_ttl, 'LIMIT', 0, BATCH)
local dropped = #too_old
if dropped > 0 then
  unbury(too_old)
  leave(too_old, 'dropped')
else
  dropped = trim_dead()
end

local more = (#ended == BATCH or dropped == BATCH) and 1 or 0
return {1, more, redis.call('ZCARD', unacked_index), by_consumer, restored, died,
  redis.call('HKEYS', consumers), dead_letter_exchange and redis.call('ZCARD', dead) or 0}
