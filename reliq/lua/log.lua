-- log: appends transient messages to the log of an exchange, which its consumers read.
--
-- Removes entries that are older than LOG_MS, and the oldest above LOG_LENGTH.
--
-- ARGV[1] version (of the bindings that routed the messages)
-- ARGV[2..] tag, envelope (two for each message: delivery tag; bytes)
--
-- Returns for each message 1 appended, or -2 nothing appended: the bindings have changed.
-- keys: log, bindings, guard
-- limits: LOG_MS, LOG_LENGTH, BATCH
local version = ARGV[1]

local outcomes, outcome = {}, 1
if redis.call('HGET', bindings, 'version') ~= version then
  outcome = -2
end
for i = 2, #ARGV, 2 do
  outcomes[#outcomes + 1] = outcome
end
if outcome < 0 then
  return outcomes
end
-- An entry's score is its time in us, and at least one more than that of the entry before it.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local last = redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')
local score = math.max(now, (tonumber(last[2]) or 0) + 1)
for i = 2, #ARGV, 2 do
  redis.call('ZADD', log, string.format('%d', score), ARGV[i] .. '|' .. ARGV[i + 1])
  score = score + 1
end
local before = string.format('%d', now - LOG_MS * 1000)
local old = redis.call('ZRANGEBYSCORE', log, '-inf', before, 'LIMIT', 0, BATCH)
local surplus = redis.call('ZCARD', log) - LOG_LENGTH
if #old == 0 and surplus > 0 then
  old = redis.call('ZRANGE', log, 0, math.min(surplus, BATCH) - 1)
end
if #old > 0 then
  redis.call('ZREM', log, unpack(old))
end
redis.call('PEXPIRE', log, LOG_MS)
return outcomes
