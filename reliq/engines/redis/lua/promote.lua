-- promote: makes ready what is due, for others: who asks cannot take it.
--
-- KEYS[1] ready (ZSET)
-- KEYS[2] delayed (ZSET)
-- KEYS[3] notification (LIST)
-- KEYS[4] stats (HASH)
-- KEYS[5] meta (HASH)
-- KEYS[6] guard (STRING)
--
-- ARGV[1] batch (messages at most)
--
-- Returns {ms until the next delayed message is due or -1, 1 when messages are ready to be
--   taken or 0}
-- Redis 6.2 or newer.
-- limits: RANK
local ready, delayed, notification, stats, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
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

-- Returns the whole number that a text says; nil where it says none, so was written by another.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
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

-- Lets one who waits have a look, unless somebody is called already.
local function notify()
  if redis.pcall('LLEN', notification) == 0 then
    redis.call('RPUSH', notification, '1')
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, batch)
if #due > 0 then
  intact({stats, meta}, {ready})
  redis.call('ZREM', delayed, unpack(due))
  promote(due)
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
local next_due = head[2] and math.max(0, head[2] - now) or -1
local open = redis.call('EXISTS', ready) == 1 and redis.call('HEXISTS', meta, 'paused') == 0
if open then
  notify()
end
return {next_due, open and 1 or 0}
