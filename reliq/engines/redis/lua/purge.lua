-- purge: removes messages that wait (ready or delayed), some at a time.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] ready (ZSET)
-- KEYS[3] delayed (ZSET)
-- KEYS[4] deliveries (HASH)
-- KEYS[5] expiry (ZSET)
-- KEYS[6] stats (HASH)
-- KEYS[7] job_events (ZSET)
-- KEYS[8] guard (STRING)
--
-- ARGV[1] batch (messages at most)
--
-- Returns how many were removed; 0 when none is left.
-- Redis 6.2 or newer.
-- limits: JOB_MARK
local messages, ready, delayed = KEYS[1], KEYS[2], KEYS[3]
local deliveries, expiry, stats, job_events = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local batch = tonumber(ARGV[1])

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Returns how many bytes the envelopes of messages have.
local function bytes_of(tags)
  local bytes = 0
  for _, tag in ipairs(tags) do
    bytes = bytes + redis.call('HSTRLEN', messages, tag)
  end
  return bytes
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

intact({messages, deliveries, stats}, {expiry, job_events})
local source = ready
local tags = redis.call('ZRANGE', ready, 0, batch - 1)
if #tags == 0 then
  source = delayed
  tags = redis.call('ZRANGE', delayed, 0, batch - 1)
end
if #tags > 0 then
  local bytes = redis.call('HEXISTS', stats, 'waiting_bytes') == 1 and bytes_of(tags)
  -- Before the counters: a first write that does not grow lets the rest run when memory is full.
  redis.call('ZREM', source, unpack(tags))
  redis.call('ZREM', expiry, unpack(tags))
  keep_events(tags, 'gone', 'purged', '')
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  if bytes then
    add(stats, 'waiting_bytes', -bytes)
  end
  add(stats, 'purged', #tags)
end
return #tags
