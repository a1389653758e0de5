-- reserve: promotes due messages, removes expired ones, and leases up to n messages.
--
-- Functions that only some calls need are defined at their use, as in publish.lua.
--
-- ARGV[1] n (messages at most; 1 at least)
-- ARGV[2] lease_ms (ms)
-- ARGV[3] consumer (id)
-- ARGV[4] no_ack (1: the messages are acked as they are taken)
-- ARGV[5] delivery_limit (failed deliveries; 0: no limit; the queue's own takes precedence)
-- ARGV[6] room (bytes of envelopes; the first message may be larger)
-- ARGV[7] dead_letter_max (messages)
-- ARGV[8] occupancy (0: the consumer holds messages; 1: none; 2: none, and requests no others;
--         -1: it has waited in vain to be alone, and claims nothing)
--
-- A poison candidate is a message that has failed twice, or with a low limit, once less than that.
-- A consumer gets one at a time. While it holds one, the mark "candidate:<consumer>" in meta names
-- it. The last delivery before the limit is isolated: the consumer holds nothing else, and gets
-- nothing until it has settled it; the mark ends in "|isolated". A consumer that finds such a
-- message while it holds others claims it ("isolating" in meta: tag, consumer, end of the claim).
-- It gets nothing else until it has settled the others.
--
-- A queue with limits gives no more messages than its free slots (x-concurrency) and its rate
-- (x-rate) allow. A slot is a lease. At a limit, the queue appears empty; the end of a lease notifies.
--
-- Returns {ms until the next delayed message is due, or the rate allows the next, or -1, lease in ms,
--   0 when no message is left ready, 1 when some are, 2 when some are, but not for this consumer
--   while it holds its poison candidate, 3 when it has claimed one, 4 when this is isolated,
--   first token, tags, envelopes, counts, {score, expires, ...}, 1 when the queue has limits or 0}
-- A count is the number of failed deliveries, or -1 for a message never delivered. The list after
-- them, only with no_ack, is the input of hand_back (expires: ms, "" for none).
-- keys: messages, ready, delayed, unacked, deliveries, expiry, dead, dead_info
-- keys: stats, meta, job_events, guard
-- limits: BATCH, CANDIDATE_FAILURES, ROUNDS
local n, lease_ms, consumer, no_ack = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local delivery_limit, room, occupancy = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local dead_letter_max = tonumber(ARGV[7])
local mark = 'candidate:' .. consumer

-- use: whole, add, next_number

-- clock: now
local paused, own_lease, expires_itself, marked, own_limit, dead_expired, max_bytes, isolating,
  concurrency, own_rate = unpack(redis.call('HMGET', meta, 'paused', 'lease', 'expires', mark,
    'delivery_limit', 'dead_expired', 'max_bytes', 'isolating', 'concurrency', 'rate'))
local limited, open, rate = concurrency or own_rate, math.huge, nil
if limited and no_ack then
  return {err = 'LIMITED queue ' .. string.match(ready, '{(.-)}')
    .. ' has limits (x-concurrency, x-rate), which need acks: consume it with no_ack=False'}
end
lease_ms = own_lease and whole(own_lease) or lease_ms
delivery_limit = own_limit and whole(own_limit) or delivery_limit
local candidate_failures = 0
if delivery_limit > 0 then
  candidate_failures = math.max(1, math.min(CANDIDATE_FAILURES, delivery_limit - 1))
end
-- The number of failures after which the next delivery is the last; no_ack has no limit.
local last = delivery_limit > 0 and not no_ack and delivery_limit - 1 or math.huge

-- Refuses a Redis user without a right to take messages. The first write needs no memory, and lets
-- the rest run when memory is full.
redis.call('ZREM', ready, '-')
redis.call('ZMSCORE', expiry, '-')
redis.call('HGET', stats, '-')
redis.call('ZADD', ready, 'XX', 0, '-')
-- Expired messages are removed first, so that none is promoted or leased.
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, BATCH)
if #overdue > 0 then
  -- use: intact, expire, permitted

  intact({messages, deliveries, dead_info, stats}, {ready, delayed, dead, job_events})
  permitted(stats, dead)
  expire(overdue, dead_expired)
end
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, BATCH)
if #due > 0 then
  -- use: intact, promote

  intact({messages, deliveries, dead_info, stats}, {ready, dead})
  promote(due)
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
local next_due = head[2] and math.max(0, head[2] - now) or -1

-- The number of messages that the limits allow now. Messages on their way to another queue, which
-- have leases without an end, occupy no slots.
if concurrency then
  open = (whole(concurrency) or math.huge) - redis.call('ZCOUNT', unacked_index, '-inf', '(inf')
end
if own_rate then
  -- use: read_rate, starts_left

  rate = read_rate(own_rate, redis.call('HGET', meta, 'rate_state'))
  if rate then
    open = math.min(open, (starts_left(rate)))
  end
end
n = math.min(n, open)

local candidate, shut, blocked, isolated, claims = nil, false, false, nil, false
if marked then
  -- use: lease_of

  local tag, alone = string.match(marked, '^([^|]*)|?(.*)$')
  local _, _, _, owner = lease_of(redis.call('HGET', unacked, tag))
  if owner == consumer then
    candidate, shut = tag, alone == 'isolated'
  else
    redis.call('HDEL', meta, mark)
  end
end
-- A claim is valid until it expires, or until another consumer gets its message.
local claimed, claimer, claim_ends = string.match(isolating or '', '^([^|]*)|(.*)|(%d+)$')
local claimed_at = claimed and tonumber(claim_ends) > now and redis.call('ZSCORE', ready, claimed)
local own = claimed_at and claimer == consumer and occupancy >= 0

local tags, envelopes, counts, token, places = {}, {}, {}, 0, {}
-- All keys are read before a message is taken, so after a type error all messages are ready.
if not paused and shut then
  blocked = true
elseif not paused and own and occupancy < 2 then
  claims = true
elseif not paused and n > 0 then
  -- The taken messages, as {tag, score, ...}; and the first one that needs an isolated delivery later.
  local taken, waits = {}, nil
  local cut, examined = false, 0

  -- Returns at most this many further ready messages within the room, as {tag, score, ...};
  -- the first message is exempt from the room, unless some are taken already.
  local function read_ready(most, some)
    local entries = redis.call('ZRANGE', ready, examined, examined + most - 1, 'WITHSCORES')
    for i = 1, #entries, 2 do
      local size = redis.call('HSTRLEN', messages, entries[i])
      if size > room and (some or i > 1) then
        for j = #entries, i, -1 do
          entries[j] = nil
        end
        cut = true
        break
      end
      room = room - size
    end
    examined = examined + #entries / 2
    return entries
  end

  if own and not candidate and not no_ack then
    taken, isolated = {claimed, claimed_at}, claimed
  else
    taken = read_ready(n, false)
  end
  local counted = #taken > 0 and redis.call('EXISTS', deliveries) == 1
  if not isolated and candidate_failures > 0 and #taken > 0 and (last == 0 or counted) then
    -- Takes the found messages that the consumer may get in addition to those that it holds (see
    -- the top). Returns the number of skipped messages.
    local function choose(entries)
      local passed_over, listed = 0, {}
      for i = 1, #entries, 2 do
        listed[#listed + 1] = entries[i]
      end
      local failed = redis.call('HMGET', deliveries, unpack(listed))
      for i, tag in ipairs(listed) do
        local failures = whole(failed[i]) or 0
        local may_be_poison = failures >= candidate_failures
        if failures >= last then
          if occupancy == 2 and not candidate and #taken == 0 then
            taken, isolated = {tag, entries[2 * i]}, tag
            break
          end
          waits = waits or tag
          passed_over = passed_over + 1
        elseif may_be_poison and candidate then
          passed_over = passed_over + 1
        else
          if may_be_poison then
            candidate = tag
            redis.call('HSET', meta, mark, tag)
          end
          taken[#taken + 1] = tag
          taken[#taken + 1] = entries[2 * i]
        end
      end
      return passed_over
    end

    local entries, passed_over, rounds = taken, 0, 0
    taken = {}
    while #entries > 0 and not isolated do
      passed_over = passed_over + choose(entries)
      -- Search a little further for messages that may be taken.
      rounds = rounds + 1
      entries = {}
      if #taken < 2 * n and passed_over > 0 and rounds < ROUNDS and not isolated then
        entries = read_ready(n - #taken / 2, #taken > 0)
      end
    end
    if passed_over > 0 then
      blocked = not isolated and (#taken == 0 or (#taken < 2 * n and not cut))
    end
  end
  if isolated then
    redis.call('HSET', meta, mark, isolated .. '|isolated')
  elseif waits and (occupancy > 0 or (occupancy == 0 and not claimed_at)) then
    claims, claimed = true, waits
  end
  for i = 1, #taken, 2 do
    tags[#tags + 1] = taken[i]
  end
  local expires, expire_here = {}, #tags > 0 and redis.call('EXISTS', expiry) == 1
  if expire_here then
    local scores = redis.call('ZMSCORE', expiry, unpack(tags))
    -- The removal above is limited: expired messages among these stay for the next call.
    local kept, kept_scores = {}, {}
    for i, tag in ipairs(tags) do
      if not scores[i] or tonumber(scores[i]) > now then
        kept[#kept + 1] = tag
        kept_scores[2 * #kept] = taken[2 * i]
        expires[#kept] = scores[i]
      end
    end
    tags, taken = kept, kept_scores
  end
  if #tags > 0 then
    envelopes = redis.call('HMGET', messages, unpack(tags))
    if counted then
      counts = redis.call('HMGET', deliveries, unpack(tags))
    end
    local again = 0
    for i = 1, #tags do
      counts[i] = counts[i] and whole(counts[i]) or -1
      again = again + (counts[i] >= 0 and 1 or 0)
    end
    -- use: take

    if no_ack then
      redis.call('HLEN', stats)
      redis.call('HDEL', messages, '-')
      for i = 1, #tags do
        places[2 * i - 1] = taken[2 * i]
        places[2 * i] = expires[i] or ''
      end
    else
      -- use: lease

      token = next_number(#tags, clock)
      local index, records = {}, {}
      for i, tag in ipairs(tags) do
        index[2 * i - 1] = now + lease_ms
        index[2 * i] = tag
        records[2 * i - 1] = tag
        records[2 * i] = string.format(
          '%d|%s|%s|%s', token + i - 1, taken[2 * i], expires[i] or '', consumer)
      end
      lease(index, records)
      open = open - #tags
    end
    if rate then
      -- use: keep_rate

      keep_rate(rate, token, #tags)
    end
    take(tags)
    if no_ack then
      -- use: leave

      leave(tags, 'acked')
    end
    if again > 0 then
      add(stats, 'redelivered', again)
    end
  end
end

if expires_itself then
  -- begin: HDEL meta
  redis.call('HSET', meta, 'used_at', now)
end
local left = (not paused and redis.call('EXISTS', ready) == 1) and 1 or 0
if left == 1 and open < 1 then
  left = 0
  if rate then
    -- use: starts_left

    local starts, wait = starts_left(rate)
    if starts < 1 then
      next_due = next_due < 0 and wait or math.min(next_due, wait)
    end
  end
end
-- Another consumer may take the rest; an idle one takes a claimed message at once. Do not notify
-- if the notification would wake this consumer first, or was sent with the claim.
if left == 1 and (not blocked or (claims and not own)) and not (claims and own) then
  -- use: notify

  notify()
end
if claims then
  redis.call('HSET', meta, 'isolating', claimed .. '|' .. consumer .. '|' .. now + lease_ms)
end
if isolated and #tags > 0 then
  left = 4
elseif claims then
  left = 3
elseif blocked and left == 1 then
  -- It reserves again when it has settled its messages; others do at their next poll.
  left = 2
end
if left > 1 then
  next_due = next_due < 0 and 1000 or math.min(next_due, 1000)
end
return {next_due, lease_ms, left, token, tags, envelopes, counts, places, limited and 1 or 0}
