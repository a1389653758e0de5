-- change_jobs: changes the states of jobs, and with them the counters of their batch.
--
-- The only step that does. What it is told may come late, twice and out of order: a job has one
-- state at a time, so the counters are the counts of the states at any instant.
--
-- KEYS[1] batch (HASH)
-- KEYS[2] jobs (HASH)
-- KEYS[3] workers (HASH)
-- KEYS[4] failures (ZSET)
-- KEYS[5] errors (HASH)
-- KEYS[6] guard (STRING)
--
-- ARGV[1] by (job that adds others; "": the producer)
-- ARGV[2..] change, job, state, retries, token, tag, queue, text (seven may be "")
--
-- change is one of enter, withdraw, begin, return, end, lose, replay, seal, cancel. retries and
-- token say which delivery of which try it is about: later ones have higher numbers.
--
-- Returns {0} where there is no such batch; else {1, 1 when cancelled or 0, outcome of each}:
-- 1 done; 0 nothing changed, it was so or is older than what is known; -1 the batch is
-- cancelled; -2 it is sealed; -3 no such job.
-- Redis 6.2 or newer.
local batch, jobs, workers, failures, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local by = ARGV[1]
local ROW = 8
-- One letter of each state is stored. An error is the worker's (e) or the broker's (x).
local COUNTER = {w = 'waiting', d = 'delayed', k = 'working', r = 'retrying', s = 'succeeded',
  f = 'failed', e = 'error', x = 'error', c = 'dropped'}
local OPEN = {w = true, d = true, k = true, r = true}

local known = redis.call('HMGET', batch, 'created', 'sealed', 'cancelled', 'ended')
if not known[1] then
  return {0}
end
local sealed, cancelled, ended = known[2], known[3], known[4]
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

-- Returns what is known of a job; nil where there is none that can be read.
local function find(id)
  local state, retries, token, since, tag, queue =
    string.match(redis.call('HGET', jobs, id) or '', '^(%l)|(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$')
  if state and COUNTER[state] then
    return {state = state, retries = tonumber(retries), token = tonumber(token), since = since,
      tag = tag, queue = queue}
  end
  return nil
end

-- Gives a job a state; was: what it had before, nil where it is new.
local function put(id, was, job)
  if was and COUNTER[was.state] ~= COUNTER[job.state] then
    redis.call('HINCRBY', batch, COUNTER[was.state], -1)
  end
  if not was or COUNTER[was.state] ~= COUNTER[job.state] then
    redis.call('HINCRBY', batch, COUNTER[job.state], 1)
  end
  local done = job.state == 's'
  redis.call('HSET', jobs, id, string.format('%s|%.0f|%.0f|%s|%s|%s', job.state, job.retries,
    job.token, now, done and '' or job.tag, done and '' or job.queue))
  if was and was.state == 'k' and job.state ~= 'k' then
    redis.call('HDEL', workers, id)
  end
  if was and (was.state == 'f' or was.state == 'e' or was.state == 'x') then
    redis.call('ZREM', failures, id)
    redis.call('HDEL', errors, id)
  end
end

-- Whether a delivery is older than the one that is known.
local function older(job, retries, token)
  return retries < job.retries or (retries == job.retries and token < job.token)
end

local does = {}

function does.enter(id, job, new)
  if cancelled then
    return -1
  elseif not job then
    local adder = by ~= '' and find(by)
    if sealed and not (adder and adder.state == 'k') then
      return -2
    end
  elseif not OPEN[job.state] or new.retries < job.retries or new.tag == job.tag then
    return 0
  elseif new.retries > job.retries then
    new.state = 'r'
  elseif job.state == 'k' then
    return 0 -- another message of the same job
  end
  new.token = 0
  put(id, job, new)
  return 1
end

function does.withdraw(id, job, new)
  if not job or job.tag ~= new.tag or job.token > 0 or not OPEN[job.state] then
    return 0
  end
  if job.retries > 0 then
    -- The try that was to be the next is not: the one before goes on.
    put(id, job, {state = 'k', retries = job.retries - 1, token = 0, tag = '', queue = job.queue})
  else
    redis.call('HDEL', jobs, id)
    redis.call('HINCRBY', batch, COUNTER[job.state], -1)
  end
  return 1
end

function does.begin(id, job, new)
  if not job and ended then
    return -3
  end
  if job then
    local again = job.state == 'e' or job.state == 'x'
    local same = new.retries == job.retries and new.token == job.token
    if (job.state == 'k' or again) and same or older(job, new.retries, new.token) then
      return 0
    elseif not OPEN[job.state] and not again then
      return 0
    end
  end
  if cancelled then
    new.state = 'c'
    put(id, job, new)
    return -1
  end
  new.state = 'k'
  put(id, job, new)
  redis.call('HSET', workers, id, new.text)
  return 1
end

-- 'return' and 'end' are words of Lua.
does['return'] = function(_, job, new)
  if not job or job.state ~= 'k' or new.retries ~= job.retries or new.token ~= job.token then
    return 0
  end
  new.state = 'w'
  new.tag, new.queue = job.tag, job.queue
  put(new.id, job, new)
  return 1
end

does['end'] = function(id, job, new)
  if not job then
    return -3
  elseif new.state == 'x' then
    if not OPEN[job.state] or job.tag ~= new.tag then
      return 0
    end
    new.retries, new.token = job.retries, job.token
  elseif not OPEN[job.state] and job.state ~= 'x' then
    return 0
  elseif new.state == 'e' and older(job, new.retries, new.token) then
    return 0
  end
  if new.tag == '' then
    new.tag, new.queue = job.tag, job.queue
  end
  new.retries, new.token = math.max(new.retries, job.retries), math.max(new.token, job.token)
  put(id, job, new)
  if new.state ~= 's' and new.state ~= 'c' then
    redis.call('ZADD', failures, now, id)
    redis.call('HSET', errors, id, new.text)
  end
  return 1
end

-- What was seen of it, and found nowhere, is what is known still: text is since when.
function does.lose(id, job, new)
  if not job or not OPEN[job.state] or job.tag ~= new.tag or job.since ~= new.text then
    return 0
  end
  new.state, new.retries, new.token, new.queue = 'x', job.retries, job.token, job.queue
  put(id, job, new)
  redis.call('ZADD', failures, now, id)
  redis.call('HSET', errors, id, "lost with the broker's data")
  return 1
end

function does.replay(id, job, new)
  if not job or (job.state ~= 'e' and job.state ~= 'x' and job.state ~= 'f') then
    return 0
  end
  new.state, new.retries, new.token = 'w', job.retries, job.token
  put(id, job, new)
  return 1
end

function does.seal()
  if sealed then
    return 0
  end
  sealed = now
  redis.call('HSET', batch, 'sealed', now)
  return 1
end

function does.cancel()
  if cancelled or ended then
    return 0
  end
  cancelled = now
  redis.call('HSET', batch, 'cancelled', now)
  does.seal()
  return 1
end

local result = {1, 0}
for i = 2, #ARGV, ROW do
  local id = ARGV[i + 1]
  local new = {id = id, state = ARGV[i + 2], retries = tonumber(ARGV[i + 3]) or 0,
    token = tonumber(ARGV[i + 4]) or 0, tag = ARGV[i + 5], queue = ARGV[i + 6],
    text = ARGV[i + 7]}
  result[#result + 1] = does[ARGV[i]](id, id ~= '' and find(id), new)
end
result[2] = cancelled and 1 or 0

-- What is due to be said, once: by whoever sees it first, or any later look at the batch.
local counts = redis.call('HMGET', batch, 'waiting', 'delayed', 'working', 'retrying',
  'succeeded', 'failed', 'error', 'dropped', 'said_failure', 'said_complete', 'said_success')
for i = 1, 8 do
  counts[i] = tonumber(counts[i]) or 0
end
local open = counts[1] + counts[2] + counts[3] + counts[4]
if sealed and counts[6] + counts[7] > 0 and not counts[9] then
  redis.call('HSETNX', batch, 'due_failure', now)
end
if sealed and open == 0 then
  redis.call('HSETNX', batch, 'ended', now)
  if not counts[10] then
    redis.call('HSETNX', batch, 'due_complete', now)
  end
  if counts[6] + counts[7] + counts[8] == 0 and not counts[11] then
    redis.call('HSETNX', batch, 'due_success', now)
  end
elseif ended then
  redis.call('HDEL', batch, 'ended')
end
return result
