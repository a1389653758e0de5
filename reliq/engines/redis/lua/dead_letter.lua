-- dead_letter: gives up on leased messages and keeps them for inspection.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] unacked_index (ZSET)
-- KEYS[3] unacked (HASH)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] dead (ZSET)
-- KEYS[6] dead_info (HASH)
-- KEYS[7] stats (HASH)
-- KEYS[8] job_events (ZSET)
-- KEYS[9] failed_deliveries (LIST)
-- KEYS[10] guard (STRING)
--
-- ARGV[1] reason ("rejected", "undecodable", ...)
-- ARGV[2] error (text; may be empty)
-- ARGV[3] dead_letter_max (messages kept; the oldest go first, counted as dropped)
-- ARGV[4..] tag, token (pairs: delivery tag, lease token)
--
-- Returns the tags whose lease another consumer holds now, or that are gone; they stay.
-- Redis 6.2 or newer.
-- limits: BATCH, JOB_MARK, FAILURES_KEPT
local messages, unacked_index, unacked, deliveries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, dead_info, stats, job_events, failed_deliveries = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local reason, err, dead_letter_max = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Raises where one of these keys holds something else, before the first write.
local function intact(hashes, zsets)
  for _, key in ipairs(hashes) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs(zsets) do
    redis.call('ZCARD', key)
  end
end

-- Returns token, score, expires and consumer of a lease record; nil of another text.
local function lease_of(record)
  return string.match(record or '', '^(%d+)|([^|]*)|([^|]*)|(.*)$')
end

-- Removes what is in no place any more for good, and counts it.
local function remove(tags, counter)
  redis.call('HDEL', dead_info, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  add(stats, counter, #tags)
end

-- Keeps the stated cap of the dead letters: the oldest go, as dropped. Returns how many went.
local function trim_dead()
  local surplus = math.min(redis.call('ZCARD', dead) - dead_letter_max, BATCH)
  if surplus > 0 then
    local oldest = redis.call('ZRANGE', dead, 0, surplus - 1)
    redis.call('ZREM', dead, unpack(oldest))
    remove(oldest, 'dropped')
  end
  return math.max(surplus, 0)
end

-- Keeps what has become of jobs until their batches are told. Its number is one of the lease
-- tokens: what was delivered before has a lower one. The body of the envelope is left out.
local function keep_events(tags, what, reason, err)
  for _, tag in ipairs(tags) do
    if string.byte(tag, -1) == JOB_MARK then
      local envelope = redis.call('HGET', messages, tag) or ''
      local kind = string.byte(envelope, 3) or 0
      local sizes = {[0xc4] = 1, [0xc5] = 2, [0xc6] = 4, [0xd9] = 1, [0xda] = 2, [0xdb] = 4}
      local digits = sizes[kind] or 0
      local size = digits == 0 and kind - 0xa0 or 0
      for i = 4, 3 + digits do
        size = size * 256 + (string.byte(envelope, i) or 0)
      end
      local number = add(stats, 'token', 1)
      add(stats, 'job_events', 1)
      redis.call('ZADD', job_events, number, table.concat({string.format('%.0f', number), what,
        tag, reason, #err, err}, '|') .. '\152\1\196\0' .. string.sub(envelope, 4 + digits + size))
    end
  end
end

-- Keeps the last failed deliveries of the queue, newest first: of what, when, how it ended, how many
-- there were by then, and who held it.
local function note_failures(entries)
  if #entries > 0 then
    redis.pcall('LPUSH', failed_deliveries, unpack(entries))
    redis.pcall('LTRIM', failed_deliveries, 0, FAILURES_KEPT - 1)
  end
end

intact({messages, unacked, deliveries, dead_info, stats}, {unacked_index, dead, job_events})
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local refused, died, noted = {}, 0, {}
for i = 4, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', unacked, tag)
  local held, _, _, owner = lease_of(record)
  if held == token then
    local failed = redis.call('HGET', deliveries, tag) or '0'
    -- Removing first keeps this possible when memory is full.
    redis.call('ZREM', unacked_index, tag)
    redis.call('ZADD', dead, now, tag)
    redis.call('HSET', dead_info, tag, reason .. '|' .. failed .. '|' .. owner .. '|' .. err)
    redis.call('HDEL', unacked, tag)
    keep_events({tag}, 'dead', reason, err)
    noted[#noted + 1] = table.concat({tag, string.format('%.0f', now), reason, failed, owner}, '|')
    died = died + 1
  else
    refused[#refused + 1] = tag
  end
end
note_failures(noted)
if died > 0 then
  add(stats, 'dead_lettered', died)
  add(stats, 'dead:' .. reason, died)
  trim_dead()
end
return refused
