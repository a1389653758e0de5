-- expire: removes messages that have waited beyond their time to live, the oldest first.
--
-- For queues from which nobody reserves: reserve does the same before it gives anything out.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] expiry (ZSET)
-- KEYS[6] dead (ZSET)
-- KEYS[7] dead_info (HASH)
-- KEYS[8] stats (HASH)
-- KEYS[9] meta (HASH)
-- KEYS[10] job_events (ZSET)
-- KEYS[11] guard (STRING)
--
-- ARGV[1] batch (messages at most)
--
-- Returns 1 when more have expired than one step removes, else 0.
-- Redis 6.2 or newer.
-- limits: JOB_MARK
local messages, ready, delayed, deliveries, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead, dead_info, stats, meta, job_events = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local batch = tonumber(ARGV[1])

-- Raises where one of these keys holds something else, before the first write.
local function intact(hashes, zsets)
  for _, key in ipairs(hashes) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs(zsets) do
    redis.call('ZCARD', key)
  end
end

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Keeps what has expired as dead letters.
local function keep_expired(tags, now)
  local failed = redis.call('HMGET', deliveries, unpack(tags))
  for i, tag in ipairs(tags) do
    redis.call('ZADD', dead, now, tag)
    redis.call('HSET', dead_info, tag, 'expired|' .. (failed[i] or 0) .. '||')
  end
  add(stats, 'dead_lettered', #tags)
  add(stats, 'dead:expired', #tags)
end

-- Removes what has expired for good.
local function remove_expired(tags)
  redis.call('HDEL', messages, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  add(stats, 'expired', #tags)
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

-- Takes out what has expired: first what does not grow, so that it runs when memory is full.
local function expire(tags, now, kept)
  redis.call('ZREM', expiry, unpack(tags))
  redis.call('ZREM', ready, unpack(tags))
  redis.call('ZREM', delayed, unpack(tags))
  keep_events(tags, kept and 'dead' or 'gone', 'expired', '')
  if kept then
    keep_expired(tags, now)
  else
    remove_expired(tags)
  end
end

-- Returns how many bytes the envelopes of messages have.
local function bytes_of(tags)
  local bytes = 0
  for _, tag in ipairs(tags) do
    bytes = bytes + redis.call('HSTRLEN', messages, tag)
  end
  return bytes
end

-- So many bytes wait no more; returns how many do. What waited before the queue was declared
-- with the limit was never counted.
local function count_down_bytes(bytes)
  local left = add(stats, 'waiting_bytes', -bytes)
  if left < 0 then
    redis.call('HSET', stats, 'waiting_bytes', 0)
  end
  return math.max(left, 0)
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local overdue = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, batch)
if #overdue == 0 then
  return 0
end
intact({messages, deliveries, dead_info, stats, meta}, {ready, delayed, dead, job_events})
local flags = redis.call('HMGET', meta, 'dead_expired', 'max_bytes')
local bytes = flags[2] and bytes_of(overdue)
expire(overdue, now, flags[1])
if bytes then
  count_down_bytes(bytes)
end
return #overdue == batch and 1 or 0
