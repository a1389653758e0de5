-- reserve: promotes what is due, removes what has expired, and leases up to n messages.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] unacked_index (ZSET)
-- KEYS[5] unacked (HASH)
-- KEYS[6] deliveries (HASH)
-- KEYS[7] expiry (ZSET)
-- KEYS[8] dead (ZSET)
-- KEYS[9] dead_info (HASH)
-- KEYS[10] bell (LIST)
-- KEYS[11] stats (HASH)
-- KEYS[12] meta (HASH)
--
-- ARGV[1] n (messages at most; 0: only promote, expire and ring)
-- ARGV[2] lease (ms)
-- ARGV[3] consumer (id)
-- ARGV[4] no_ack (1: the messages are finished as they are taken)
-- ARGV[5] delivery_limit (failed deliveries; 0: no limit; the queue's own goes first)
--
-- A message that has failed twice, or once less than its limit if that is sooner, is a
-- suspect. Suspects run alone: a consumer gets one at a time, and while it holds it the
-- mark "suspect:<consumer>" in meta names it, so that its death is blamed on it alone.
--
-- Returns {ms until the next delayed message is due or -1, lease in ms,
--   1 when messages are left ready or 2 when they are, but not for this consumer while
--   it holds its suspect, first token, tags, envelopes, counts}
-- where a count is the failed deliveries, or -1 for a message never delivered.
-- Redis 6.2 or newer.
local messages, ready, delayed, unacked_index, unacked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, expiry, dead, dead_info = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local bell, stats, meta = KEYS[10], KEYS[11], KEYS[12]
local n, lease, consumer, no_ack = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local delivery_limit = tonumber(ARGV[5])
local mark = 'suspect:' .. consumer

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local flags = redis.call('HMGET', meta,
  'paused', 'lease', 'expires', mark, 'delivery_limit', 'dead_expired', 'max_bytes')
if flags[2] then
  lease = tonumber(flags[2])
end
delivery_limit = tonumber(flags[5] or delivery_limit)
local suspected = delivery_limit > 0 and math.max(1, math.min(2, delivery_limit - 1)) or 0

local function expire(tags)
  if flags[6] then
    local failed = redis.call('HMGET', deliveries, unpack(tags))
    for i, tag in ipairs(tags) do
      redis.call('ZADD', dead, now, tag)
      redis.call('HSET', dead_info, tag, 'expired|' .. (failed[i] or 0) .. '||')
    end
    redis.call('HINCRBY', stats, 'dead_lettered', #tags)
    redis.call('HINCRBY', stats, 'dead:expired', #tags)
  else
    redis.call('HDEL', messages, unpack(tags))
    redis.call('HDEL', deliveries, unpack(tags))
    redis.call('HINCRBY', stats, 'expired', #tags)
  end
end

-- Expired messages leave first, so that none of them is promoted or leased.
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 200)
local bytes = 0
if #overdue > 0 then
  redis.call('ZREM', expiry, unpack(overdue))
  redis.call('ZREM', ready, unpack(overdue))
  redis.call('ZREM', delayed, unpack(overdue))
  if flags[7] then
    for _, tag in ipairs(overdue) do
      bytes = bytes + redis.call('HSTRLEN', messages, tag)
    end
  end
  expire(overdue)
end

local next_due = -1
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 200)
if #due > 0 then
  redis.call('ZREM', delayed, unpack(due))
  -- A promoted message queues behind what is ready at its rank now.
  local promoted = redis.call('HINCRBY', meta, 'promoted', #due) - #due
  local sequence = redis.call('HGET', stats, 'published') + promoted
  local scored = {}
  for i, tag in ipairs(due) do
    local rank = tonumber(string.sub(tag, 1, 2), 16)
    scored[2 * i - 1] = rank * 35184372088832 + sequence + i
    scored[2 * i] = tag
  end
  redis.call('ZADD', ready, unpack(scored))
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if head[2] then
  next_due = math.max(0, head[2] - now)
end

local tags, envelopes, counts, token = {}, {}, {}, 0
local suspect, blocked = flags[4], false
if suspect then
  local record = redis.call('HGET', unacked, suspect)
  if not record or string.match(record, '^%d+|[^|]*|[^|]*|(.*)$') ~= consumer then
    redis.call('HDEL', meta, mark)
    suspect = nil
  end
end
if n > 0 and not flags[1] then
  local popped = redis.call('ZPOPMIN', ready, n)
  if suspected > 0 and #popped > 0 and redis.call('EXISTS', deliveries) == 1 then
    local taken, back, rounds = {}, {}, 0
    while #popped > 0 do
      local asked = {}
      for i = 1, #popped, 2 do
        asked[#asked + 1] = popped[i]
      end
      local failed = redis.call('HMGET', deliveries, unpack(asked))
      for i, tag in ipairs(asked) do
        if tonumber(failed[i] or 0) < suspected then
          taken[#taken + 1] = tag
          taken[#taken + 1] = popped[2 * i]
        elseif not suspect then
          suspect = tag
          redis.call('HSET', meta, mark, tag)
          taken[#taken + 1] = tag
          taken[#taken + 1] = popped[2 * i]
        else
          back[#back + 1] = popped[2 * i]
          back[#back + 1] = tag
        end
      end
      -- Look a little further for what may be taken beside it.
      rounds = rounds + 1
      popped = {}
      if #taken < 2 * n and #back > 0 and rounds < 4 then
        popped = redis.call('ZPOPMIN', ready, n - #taken / 2)
      end
    end
    popped = taken
    if #back > 0 then
      blocked = #taken < 2 * n
      redis.call('ZADD', ready, unpack(back))
    end
  end
  for i = 1, #popped, 2 do
    tags[#tags + 1] = popped[i]
  end
  local expires = {}
  if #tags > 0 and redis.call('EXISTS', expiry) == 1 then
    local scores = redis.call('ZMSCORE', expiry, unpack(tags))
    redis.call('ZREM', expiry, unpack(tags))
    -- The look above is bounded: an expired message may still have been among these.
    local kept, kept_scores, gone = {}, {}, {}
    for i, tag in ipairs(tags) do
      if scores[i] and tonumber(scores[i]) <= now then
        gone[#gone + 1] = tag
      else
        kept[#kept + 1] = tag
        kept_scores[2 * #kept] = popped[2 * i]
        expires[#kept] = scores[i]
      end
    end
    if #gone > 0 then
      if flags[7] then
        for _, tag in ipairs(gone) do
          bytes = bytes + redis.call('HSTRLEN', messages, tag)
        end
      end
      expire(gone)
    end
    tags, popped = kept, kept_scores
  end
  if #tags > 0 then
    envelopes = redis.call('HMGET', messages, unpack(tags))
    if redis.call('EXISTS', deliveries) == 1 then
      counts = redis.call('HMGET', deliveries, unpack(tags))
    end
    local again = 0
    for i = 1, #tags do
      counts[i] = counts[i] and tonumber(counts[i]) or -1
      again = again + (counts[i] >= 0 and 1 or 0)
      bytes = bytes + #(envelopes[i] or '')
    end
    if again > 0 then
      redis.call('HINCRBY', stats, 'redelivered', again)
    end
    if no_ack then
      redis.call('HDEL', messages, unpack(tags))
      redis.call('HDEL', deliveries, unpack(tags))
      redis.call('HINCRBY', stats, 'acked', #tags)
    else
      token = redis.call('HINCRBY', stats, 'token', #tags) - #tags + 1
      local index, records = {}, {}
      for i, tag in ipairs(tags) do
        index[2 * i - 1] = now + lease
        index[2 * i] = tag
        records[2 * i - 1] = tag
        records[2 * i] = string.format(
          '%d|%s|%s|%s', token + i - 1, popped[2 * i], expires[i] or '', consumer)
      end
      redis.call('ZADD', unacked_index, unpack(index))
      redis.call('HSET', unacked, unpack(records))
    end
  end
end

if flags[3] then
  -- A first write that does not grow lets the rest run when memory is full.
  redis.call('HDEL', meta, '')
  redis.call('HSET', meta, 'used_at', now)
end
if flags[7] and bytes > 0 then
  if redis.call('HINCRBY', stats, 'waiting_bytes', -bytes) < 0 then
    -- What waited before the queue was declared with the limit was never counted.
    redis.call('HSET', stats, 'waiting_bytes', 0)
  end
end
local left = (not flags[1] and redis.call('EXISTS', ready) == 1) and 1 or 0
if blocked and left == 1 then
  -- What is left is not for this consumer now, and ringing would wake it first: it asks
  -- again when it is done with its suspect, or in a second; others with their next look.
  left = 2
  next_due = next_due < 0 and 1000 or math.min(next_due, 1000)
end
if left == 1 and redis.call('LLEN', bell) == 0 then
  redis.call('RPUSH', bell, '1')
end
return {next_due, lease, left, token, tags, envelopes, counts}
