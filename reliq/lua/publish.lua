-- publish: stores messages in one queue, each once, all in one step.
--
-- If the queue has reached a limit, its expired messages are removed first. Functions that only
-- some calls need are defined at their use, because each definition takes time in each call.
--
-- ARGV[1] must_exist (1: refuse a queue that was never declared; 0: create it)
-- ARGV[2] version (of the bindings that routed the messages; empty: do not check)
-- ARGV[3] keep (minimum ms from now to keep the publisher's numbers; negative: for a new
--         publisher its absolute value, else unchanged)
-- ARGV[4] low_water (lower numbers are settled: they are removed, and a late one is refused;
--         0: not given)
-- ARGV[5] dead_letter_max (messages)
-- ARGV[6] publisher (of the numbers)
-- ARGV[7..] tag, envelope, rank, number, delay, ttl (six for each message: delivery tag;
--   bytes; 0-255, lowest is served first; publish number of this publisher in this queue
--   or 0: not numbered; ms or 0: none; ms or -1: none)
--
-- Returns for each message 1 stored, 2 stored in a queue that this call created,
--   0 stored before; or not stored: -1 no such queue, -2 the bindings have changed, -3 the
--   queue is full (x-overflow reject-publish), -4 it is a closed partition (if must_exist).
--   If the queue exists and has partitions, their number follows.
-- keys: messages, ready, delayed, expiry, dead, dead_info, deliveries, stats, meta, publishers
-- keys: bindings, job_events, guard
-- limits: RANK, LONG_MS, BATCH
local must_exist, version, keep, low_water = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local dead_letter_max, publisher = tonumber(ARGV[5]), ARGV[6]

-- use: whole

local outcomes = {}
local queue = redis.call('HMGET', meta,
  'exists', 'message_ttl', 'promoted', 'max_length', 'max_bytes', 'partitions', 'closed')
local refused = nil
if version ~= '' and redis.call('HGET', bindings, 'version') ~= version then
  refused = -2
elseif not queue[1] and must_exist == '1' then
  refused = -1
end
if refused then
  for i = 7, #ARGV, 6 do
    outcomes[#outcomes + 1] = refused
  end
  return outcomes
end
local stored = 1
if not queue[1] then
  redis.call('HSET', meta, 'exists', '1')
  -- If a queue of this name was just deleted, keep its publish numbers.
  redis.call('PEXPIRE', publishers, LONG_MS)
  stored = 2
end
local message_ttl, promoted = queue[2] and whole(queue[2]), queue[3] and whole(queue[3]) or 0
local max_length, max_bytes = queue[4] and whole(queue[4]), queue[5] and whole(queue[5])
local closed = queue[7] and must_exist == '1'
local limited, counts_bytes = max_length or max_bytes, max_bytes
local rejects, waiting, bytes, now = false, 0, 0, nil
-- use: store

local drop_head
if limited then
  max_length, max_bytes = max_length or math.huge, max_bytes or math.huge
  local about = redis.call('HMGET', meta, 'overflow', 'dead_expired')
  rejects = about[1] == 'reject-publish'
  waiting = redis.call('ZCARD', ready) + redis.call('ZCARD', delayed)
  bytes = whole(redis.call('HGET', stats, 'waiting_bytes')) or 0
  local more, more_bytes = (#ARGV - 6) / 6, 0
  for i = 8, #ARGV, 6 do
    more_bytes = more_bytes + #ARGV[i]
  end
  -- Messages may have to be removed: check the types of the keys before that.
  if waiting + more > max_length or bytes + more_bytes > max_bytes then
    -- use: intact, permitted, expire

    intact({messages, deliveries, dead_info}, {expiry, dead, job_events})
    permitted(deliveries, dead)
    -- Expired messages are removed before any other message.
    local clock = redis.call('TIME')
    now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, BATCH)
    if #overdue > 0 then
      expire(overdue, about[2])
      waiting = waiting - #overdue
      bytes = whole(redis.call('HGET', stats, 'waiting_bytes')) or 0
    end
  end

  -- Dead-letters the oldest messages of the lowest priority until the queue is within its limits.
  function drop_head()
    -- use: take, failures_of, bury

    local clock = redis.call('TIME')
    now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local victims = {}
    while (waiting > max_length or bytes > max_bytes) and #victims < BATCH do
      local last = redis.call('ZRANGE', ready, -1, -1, 'WITHSCORES')
      local victim
      if last[1] then
        local rank = string.format('%d', math.floor(last[2] / RANK) * RANK)
        victim = redis.call('ZRANGEBYSCORE', ready, rank, '+inf', 'LIMIT', 0, 1)[1]
      else
        victim = redis.call('ZRANGE', delayed, 0, 0)[1]
      end
      if not victim then
        break
      end
      waiting, bytes = waiting - 1, bytes - redis.call('HSTRLEN', messages, victim)
      take({victim})
      victims[#victims + 1] = victim
    end
    bury(failures_of(victims), 'maxlen', '')
  end
end

-- The record of a publisher is "until low_water known": when it expires, the number below which
-- all are settled, and ranges of known numbers ("4-8,10"). In ranges here: first, last, first ...
local ranges, settled, forgotten, first, numbered = nil, 0, 0, false, false
local function recall()
  local record = redis.call('HGET', publishers, publisher)
  ranges, first = {}, not record
  local till, before, known = string.match(record or '', '^(%d+) (%d+) ?(.*)$')
  settled, forgotten = tonumber(before or 0), tonumber(till or 0)
  for from, to in string.gmatch(known or '', '(%d+)%-?(%d*)') do
    ranges[#ranges + 1] = tonumber(from)
    ranges[#ranges + 1] = tonumber(to ~= '' and to or from)
  end
end

-- Returns the position of the last range that begins at number or before it.
local function place_of(number)
  local i = #ranges - 1
  while i > 0 and ranges[i] > number do
    i = i - 2
  end
  return i
end
local function note(number)
  local i = place_of(number)
  local joins, joined = i > 0 and ranges[i + 1] == number - 1, ranges[i + 2] == number + 1
  if joins and joined then
    ranges[i + 1] = ranges[i + 3]
    table.remove(ranges, i + 2)
    table.remove(ranges, i + 2)
  elseif joins then
    ranges[i + 1] = number
  elseif joined then
    ranges[i + 2] = number
  else
    table.insert(ranges, i + 2, number)
    table.insert(ranges, i + 2, number)
  end
  numbered = true
end
local function remember()
  settled = math.max(settled, low_water)
  local known = {}
  for i = 1, #ranges, 2 do
    local from, to = math.max(ranges[i], settled), ranges[i + 1]
    if from == to then
      known[#known + 1] = string.format('%d', from)
    elseif from < to then
      known[#known + 1] = string.format('%d-%d', from, to)
    end
  end
  local clock, keep_ms = nil, first and math.abs(keep) or keep
  if first or low_water > 0 or keep_ms > 0 then
    clock = redis.call('TIME')
    clock = clock[1] * 1000 + math.floor(clock[2] / 1000)
  end
  if keep_ms > 0 then
    forgotten = math.max(forgotten, clock + keep_ms)
  end
  local record = string.format('%d %d %s', forgotten, settled, table.concat(known, ','))
  redis.call('HSET', publishers, publisher, record)
  if keep_ms > 0 and redis.call('PTTL', publishers) < keep_ms then
    redis.call('PEXPIRE', publishers, keep_ms)
  end
  -- The records of killed publishers expire here: each call checks a few random records, and
  -- continues while it finds expired ones.
  for _ = 1, clock and 50 or 0 do
    local some, late = redis.call('HRANDFIELD', publishers, 4, 'WITHVALUES'), {}
    for i = 1, #some, 2 do
      if (tonumber(string.match(some[i + 1], '^(%d+) %d')) or 0) < clock then
        late[#late + 1] = some[i]
      end
    end
    if #late > 0 then
      redis.call('HDEL', publishers, unpack(late))
    end
    if #late < 2 then
      break
    end
  end
end

local notified = false
for i = 7, #ARGV, 6 do
  local tag, envelope, rank, number = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local delay, ttl = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  local full = rejects and (waiting + 1 > max_length or bytes + #envelope > max_bytes)
  local outcome = closed and -4 or full and -3 or stored
  number = number ~= '0' and tonumber(number)
  if number then
    if not ranges then
      recall()
    end
    local place = place_of(number)
    -- A number below settled: the network delayed this request until its retry had returned.
    if number < settled or (place > 0 and number <= ranges[place + 1]) then
      outcome = 0
    end
  end
  outcomes[#outcomes + 1] = outcome
  if outcome > 0 then
    if message_ttl and (ttl < 0 or message_ttl < ttl) then
      ttl = message_ttl
    end
    if not now and (delay > 0 or ttl >= 0) then
      local clock = redis.call('TIME')
      now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    local due = delay > 0 and now + delay
    local done = store(tag, envelope, rank * RANK + promoted, due,
      ttl >= 0 and now + delay + ttl)
    if type(done) ~= 'number' then
      if numbered then
        remember()
      end
      return done
    end
    -- Only a new earliest message changes how long consumers may sleep.
    notified = notified or not due or redis.call('ZRANK', delayed, tag) == 0
    if number then
      note(number)
    end
    stored = 1
    waiting, bytes = waiting + 1, bytes + #envelope
  end
end

if numbered then
  remember()
end
if limited and not rejects and (waiting > max_length or bytes > max_bytes) then
  drop_head()
end
if notified then
  -- use: notify

  notify()
end
if queue[6] then
  outcomes[#outcomes + 1] = whole(queue[6]) or 1
end
return outcomes
