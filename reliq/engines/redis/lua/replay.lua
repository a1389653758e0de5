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

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Lets one who waits have a look, unless somebody is called already.
local function notify()
  if redis.pcall('LLEN', notification) == 0 then
    redis.call('RPUSH', notification, '1')
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

-- Raises where one of these keys holds something else, before the first write.
local function intact(hashes, zsets)
  for _, key in ipairs(hashes) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs(zsets) do
    redis.call('ZCARD', key)
  end
end

-- Returns the whole number that a text says; nil where it says none, so was written by another.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
end

-- Returns the score before all others of the rank that a tag begins with.
local function head_of_rank(tag)
  return (tonumber(string.sub(tag, 1, 2), 16) or 0) * RANK
end

-- Puts messages behind what is ready at their rank now.
local function promote(tags)
  local published = whole(redis.call('HGET', stats, 'published')) or 0
  local scored, sequence = {}, published + add(meta, 'promoted', #tags) - #tags
  for i, tag in ipairs(tags) do
    scored[2 * i - 1] = head_of_rank(tag) + sequence + i
    scored[2 * i] = tag
  end
  redis.call('ZADD', ready, unpack(scored))
end

-- Whether a dead letter is on its way to another queue since less than a day. The number of its
-- move is the time at which that began, in us.
local function is_moving(move, clock)
  local begun = move and tonumber(string.match(move, '^%d+') or '')
  return begun and clock[1] * 1000000 + clock[2] - begun <= DAY_US
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
