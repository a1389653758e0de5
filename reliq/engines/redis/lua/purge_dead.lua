-- purge_dead: removes dead letters for good.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] deliveries (HASH)
-- KEYS[3] dead (ZSET)
-- KEYS[4] dead_info (HASH)
-- KEYS[5] stats (HASH)
-- KEYS[6] moves (HASH)
-- KEYS[7] guard (STRING)
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns how many were removed; what is no dead letter, or on its way to another queue
--   since less than a day, stays.
-- Redis 6.2 or newer.
-- limits: DAY_US
local messages, deliveries, dead = KEYS[1], KEYS[2], KEYS[3]
local dead_info, stats, moves = KEYS[4], KEYS[5], KEYS[6]

-- Adds to a number in a hash; what is no number begins anew. Returns what it is now.
local function add(hash, field, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if type(value) == 'table' then
    redis.call('HSET', hash, field, by)
    value = by
  end
  return value
end

-- Removes what is in no place any more for good, and counts it.
local function remove(tags, counter)
  redis.call('HDEL', dead_info, unpack(tags))
  redis.call('HDEL', deliveries, unpack(tags))
  redis.call('HDEL', messages, unpack(tags))
  add(stats, counter, #tags)
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

-- Whether a dead letter is on its way to another queue since less than a day. The number of its
-- move is the time at which that began, in us.
local function is_moving(move, clock)
  local begun = move and tonumber(string.match(move, '^%d+') or '')
  return begun and clock[1] * 1000000 + clock[2] - begun <= DAY_US
end

intact({messages, deliveries, dead_info, stats}, {dead})
local gone = {}
local clock = redis.call('TIME')
for _, tag in ipairs(ARGV) do
  local moving = is_moving(redis.call('HGET', moves, tag), clock)
  if not moving and redis.call('ZREM', dead, tag) == 1 then
    redis.call('HDEL', moves, tag)
    gone[#gone + 1] = tag
  end
end
if #gone > 0 then
  remove(gone, 'purged')
end
return #gone
