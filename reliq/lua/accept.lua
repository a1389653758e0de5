-- accept: stores messages moved from another queue, each once.
--
-- The limits of the queue do not apply, because the messages were accepted before.
--
-- ARGV[1] low_water (lower numbers are settled: a late message with one is ignored)
-- ARGV[2..] tag, envelope, rank, number, delay, ttl, failed, died, info (nine for each
--   message: delivery tag; bytes; 0-255; number of the move; ms; ms or -1: none; failed
--   deliveries or -1: never delivered; ms since the epoch when it died or 0: not dead;
--   "reason|count|consumer|error" of a dead letter)
--
-- Returns for each 1 stored, 0 stored before, -1 no such queue.
-- keys: messages, ready, delayed, expiry, deliveries, dead, dead_info, stats, meta, publisher
-- keys: guard
-- limits: RANK
local low_water = ARGV[1]

-- clock: now
-- use: whole, notify, intact, count_failures, record_dead, settle_numbers

intact({messages, deliveries, dead_info, stats}, {ready, delayed, expiry, dead, publisher})
local outcomes = {}
local queue = redis.call('HMGET', meta, 'exists', 'promoted', 'max_bytes')
local promoted, counts_bytes = whole(queue[2]) or 0, queue[3]
-- use: store

local settled = tonumber(redis.call('ZSCORE', publisher, 'low_water') or 0)
for i = 2, #ARGV, 9 do
  local tag, envelope, rank, number = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local delay, ttl, failed = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
  -- The clock of the other server may be ahead, and dead letters of the future are not found.
  local died, info = math.min(tonumber(ARGV[i + 7]), now), ARGV[i + 8]
  local outcome = 0
  if not queue[1] then
    outcome = -1
  elseif tonumber(number) >= settled and redis.call('ZADD', publisher, 'NX', number, number) == 1 then
    outcome = 1
    local score, due, expires = rank * RANK + promoted, delay > 0 and now + delay, ttl >= 0 and now + ttl
    if died > 0 then
      score, due, expires = nil, nil, nil
    end
    local done = store(tag, envelope, score, due, expires)
    if type(done) ~= 'number' then
      return done
    end
    if failed >= 0 then
      count_failures({{tag = tag, failed = failed}})
    end
    if died > 0 then
      local reason, count, owner, err = string.match(info, '^([^|]*)|([^|]*)|([^|]*)|(.*)$')
      record_dead({{tag = tag, died = died, failed = count, owner = owner}}, reason, err)
    end
  end
  outcomes[#outcomes + 1] = outcome
end
settle_numbers()
if redis.call('EXISTS', ready, delayed) > 0 then
  notify()
end
return outcomes
