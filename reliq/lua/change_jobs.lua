-- change_jobs: changes the states of jobs, together with the counters of their batch.
--
-- No other script changes them. Changes may arrive late, twice and out of order. A job has one
-- state at a time, so the counters always equal the numbers of jobs in each state.
--
-- ARGV[1] by (job that adds others; "": the producer)
-- ARGV[2..] change, job, state, retries, token, tag, queue, text (eight for each; "": not given)
--
-- A change is enter, withdraw, begin, return, end, lose, replay, seal, settle or cancel. retries
-- and token name the try and the delivery; later ones have higher numbers.
--
-- Returns {0} if there is no such batch; else {1, flags, outcome of each}. Flags: 1 the batch is
-- cancelled, plus 2 when a callback is pending. Outcomes: 1 done; 0 nothing changed, because it
-- was so before or is older than the known state; -1 the batch is cancelled; -2 it is sealed;
-- -3 no such job; 2 the job's message was never stored, and the job is removed.
--
-- A publisher enters jobs, stores their messages, and only then enters more jobs or seals. So only
-- the jobs of its last entry may lack a message. The field "from:" and the publisher's name, taken
-- from the tags, has the time of that entry. With the text "more", a job joins the previous entry.
-- keys: batch, jobs, failures, errors, guard
-- limits: PUBLISHER_FROM, PUBLISHER_TO
local by = ARGV[1]
local ROW = 8

-- Handles one begin, or one success, of an open job in a batch that has not ended. Nearly every
-- call is one, and takes a quarter of the time without the tables for many changes. The rules are
-- those of does.begin and does['end']. Returns nil, without changes, in any other case.
local function one_change(what, id, state, retries, token, tag, queue, text)
  local begins = what == 'begin'
  if not begins and (what ~= 'end' or state ~= 's') then
    return nil
  end
  local was, tried, known, since = string.match(redis.call('HGET', jobs, id) or '',
    '^([wdkr])|(%d+)|(%d+)|(%d+)|[^|]*|[^|]*|')
  local is = redis.call('HMGET', batch, 'waiting', 'delayed', 'working', 'retrying', 'succeeded',
    'created', 'cancelled', 'ended', 'sealed', 'due_success', 'due_complete', 'due_failure')
  if not was or not is[6] or is[7] or is[8] then
    return nil
  end
  for i = 1, 5 do
    is[i] = tonumber(string.match(is[i] or '', '^%d+$') or 0)
  end
  local from, to = ({w = 1, d = 2, k = 3, r = 4})[was], begins and 3 or 5
  local is_last = not begins and is[9] and is[1] + is[2] + is[3] + is[4] < 2
  retries, token = tonumber(retries) or 0, tonumber(token) or 0
  tried, known = tonumber(tried), tonumber(known)
  local is_old = begins and (retries < tried or retries == tried and (was == 'k' or token <= known))
  if is[from] < 1 or is_last or is_old then
    return nil
  end
  local time = redis.call('TIME')
  since = math.max(time[1] * 1000 + math.floor(time[2] / 1000), tonumber(since) + 1)
  if not begins then
    retries, token = math.max(retries, tried), math.max(token, known)
    tag, text, queue = '', '', ''
  end
  -- begin: HDEL batch
  redis.call('HSET', jobs, id, (begins and 'k' or 's') ..
    string.format('|%.0f|%.0f|%.0f|', retries, token, since) .. tag .. '|' .. text .. '|' .. queue)
  if from ~= to then
    local names = {'waiting', 'delayed', 'working', 'retrying', 'succeeded'}
    redis.call('HSET', batch, names[from], string.format('%.0f', is[from] - 1),
      names[to], string.format('%.0f', is[to] + 1))
  end
  return {1, (is[10] or is[11] or is[12]) and 2 or 0, 1}
end
if #ARGV == 1 + ROW then
  local done = one_change(unpack(ARGV, 2))
  if done then
    return done
  end
end
-- The stored letter of each state. An error is the worker's (e) or the broker's (x).
local counter = {w = 'waiting', d = 'delayed', k = 'working', r = 'retrying', s = 'succeeded',
  f = 'failed', e = 'error', x = 'error', c = 'dropped'}
local is_open = {w = true, d = true, k = true, r = true}
local flags = {'sealed', 'cancelled', 'ended', 'due_failure', 'due_complete', 'due_success',
  'said_failure', 'said_complete', 'said_success', 'created', 'added'}
local counters = {'waiting', 'delayed', 'working', 'retrying', 'succeeded', 'failed', 'error',
  'dropped'}

-- use: intact

-- The fields of the batch, before and after the changes; they are written at the end.
local was, is = {}, {}
for i, value in ipairs(redis.call('HMGET', batch, unpack(flags))) do
  was[flags[i]], is[flags[i]] = value, value
end
if not is.created then
  return {0}
end
for i, value in ipairs(redis.call('HMGET', batch, unpack(counters))) do
  value = tonumber(string.match(value or '', '^%d+$') or 0)
  was[counters[i]], is[counters[i]] = value, value
end
intact({jobs, errors}, {failures})
-- clock: now

-- Returns a stored job, or nil. An unreadable job has no state: it was counted before, and is
-- left unchanged.
local function read(stored)
  if not stored then
    return nil
  end
  local state, retries, token, since, tag, worker, queue =
    string.match(stored, '^(%l)|(%d+)|(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$')
  if not counter[state or ''] then
    return {}
  end
  return {state = state, retries = tonumber(retries), token = tonumber(token),
    since = tonumber(since), tag = tag, worker = worker, queue = queue}
end

-- The jobs of the changes, before and after them; they are written at the end.
local ids, stored, current = {}, {}, {}
for i = 3, #ARGV, ROW do
  local id = ARGV[i]
  if id ~= '' and stored[id] == nil then
    stored[id] = false
    ids[#ids + 1] = id
  end
end
if #ids > 0 then
  for i, record in ipairs(redis.call('HMGET', jobs, unpack(ids))) do
    current[ids[i]] = read(record)
    stored[ids[i]] = current[ids[i]] or false
  end
end

-- Whether the job that adds others is still working.
local function works(id)
  local job = current[id]
  if stored[id] == nil then
    job = read(redis.call('HGET', jobs, id))
  end
  return job and job.state == 'k'
end

-- Adds 1 or -1 to the counter of a state.
local function count(state, by_one)
  is[counter[state]] = math.max(is[counter[state]] + by_one, 0)
end

-- Gives a job a new state; before: its previous record, nil for a new job.
local function put(id, before, job)
  if before then
    count(before.state, -1)
  end
  count(job.state, 1)
  -- No two states of a job have the same time.
  job.since = before and math.max(now, before.since + 1) or now
  current[id] = job
end

-- Whether two deliveries are of one queue: tokens of different queues cannot be compared.
local function comparable(job, new)
  return new.queue == '' or job.queue == '' or new.queue == job.queue
end

-- Whether a delivery is older than the known one.
local function older(job, new)
  if new.retries ~= job.retries then
    return new.retries < job.retries
  end
  return comparable(job, new) and new.token < job.token
end

-- Whether a delivery is the known one.
local function same(job, new)
  return new.retries == job.retries and new.token == job.token and comparable(job, new)
end

-- Whether an event of the broker is older than the known state; false without a number.
local function before(job, new)
  return new.token > 0 and comparable(job, new) and new.token < job.token
end

-- Reads the time of the last entry by the publisher of this tag; returns the name of the field.
local function heard(tag)
  local name = 'from:' .. string.sub(tag, PUBLISHER_FROM, PUBLISHER_TO)
  if was[name] == nil then
    was[name] = redis.call('HGET', batch, name)
    is[name] = tonumber(was[name]) or false
    was[name] = is[name]
  end
  return name
end

local does = {}

function does.enter(id, job, new)
  if is.cancelled and not (job and is_open[job.state]) then
    return -1 -- the next try of an open job is cancelled when it begins
  elseif not job then
    if is.sealed and not (by ~= '' and works(by)) then
      return -2
    end
    is.added = now
  elseif new.retries < job.retries then
    return 0
  elseif new.retries > job.retries then
    -- A next try is valid even if the broker or another worker has given the job up.
    if not is_open[job.state] and job.state ~= 'e' and job.state ~= 'x' then
      return 0
    end
    -- The message of the previous try remains until that of the next one is stored.
    new.state, new.worker = 'r', job.tag
  elseif new.tag == job.tag or job.state == 'k' or not is_open[job.state] then
    return 0 -- repeated, or another message of the same try
  elseif job.state == 'r' then
    new.state, new.worker = 'r', job.worker
  end
  new.token = 0
  put(id, job, new)
  if not job and #new.tag > PUBLISHER_TO then
    local from = heard(new.tag)
    if new.text == 'more' then
      new.since = is[from] or now
    end
    is[from] = new.since
  end
  return 1
end

function does.withdraw(id, job, new)
  if not job or job.tag ~= new.tag or job.token > 0 or job.state == 'k'
    or not is_open[job.state] then
    return 0
  end
  if job.state == 'r' then
    -- The try that was entered was not stored: the previous one continues.
    put(id, job, {state = 'k', retries = math.max(job.retries - 1, 0), token = 0,
      tag = job.worker, queue = job.queue, worker = ''})
  else
    current[id] = nil
    count(job.state, -1)
  end
  return 1
end

function does.begin(id, job, new)
  if not job and is.ended then
    return is.cancelled and -1 or -3
  end
  if job then
    local again = job.state == 'e' or job.state == 'x'
    if not is_open[job.state] and not again then
      return is.cancelled and -1 or 0 -- the job was dropped, and its message redelivered
    elseif older(job, new) then
      return is.cancelled and -1 or 0
    elseif same(job, new) and (job.state == 'k' or again or new.token > 0) then
      return 0 -- repeated, perhaps after the message was returned
    end
  end
  if is.cancelled then
    new.state = 'c'
    put(id, job, new)
    return -1
  end
  new.state, new.worker = 'k', new.text
  put(id, job, new)
  return 1
end

-- 'return' and 'end' are reserved words of Lua.
does['return'] = function(id, job, new)
  if not job or job.state ~= 'k' or not same(job, new) then
    return 0
  end
  new.state, new.tag, new.queue = 'w', job.tag, job.queue
  put(id, job, new)
  return 1
end

does['end'] = function(id, job, new)
  if not job then
    return -3
  end
  if new.state == 'c' and not is.cancelled then
    new.state = 'e' -- the task was revoked
  end
  if new.state == 'x' then
    if not is_open[job.state] or job.tag ~= '' and job.tag ~= new.tag or before(job, new) then
      return 0
    end
    new.retries = job.retries
  elseif not is_open[job.state] and job.state ~= 'x' then
    return 0
  elseif (new.state == 'e' or new.state == 'c') and older(job, new)
    and not (job.state == 'x' and job.tag == new.tag) then
    return 0
  end
  new.tag = new.tag ~= '' and new.tag or job.tag
  new.queue = new.queue ~= '' and new.queue or job.queue
  new.retries, new.token = math.max(new.retries, job.retries), math.max(new.token, job.token)
  put(id, job, new)
  return 1
end

-- The message of a job was not found. text: the time of the state that the caller read.
function does.lose(id, job, new)
  if not job or not is_open[job.state] or job.tag ~= new.tag
    or string.format('%.0f', job.since) ~= new.text then
    return 0
  end
  local waits = job.state == 'w' or job.state == 'd'
  if waits and job.token == 0 and #job.tag > PUBLISHER_TO and job.since == is[heard(job.tag)] then
    current[id] = nil
    count(job.state, -1)
    return 2
  end
  put(id, job, {state = 'x', retries = job.retries, token = job.token, tag = job.tag,
    queue = job.queue, text = "lost with the broker's data"})
  return 1
end

function does.replay(id, job, new)
  if not job or job.state == 's' or job.state == 'c' or before(job, new) then
    return 0
  end
  local known = comparable(job, new)
  if known and new.token > 0 and new.token == job.token then
    return 0 -- repeated
  elseif new.text ~= '' then
    if job.tag ~= new.text then -- the former tag of a moved message
      return 0
    end
  elseif is_open[job.state] and (new.token == 0 or job.tag ~= new.tag) then
    return 0
  end
  new.state, new.retries = job.state == 'r' and 'r' or 'w', job.retries
  new.token = known and math.max(new.token, job.token) or new.token
  put(id, job, new)
  return 1
end

function does.seal(_, _, new)
  if new and new.tag ~= '' then
    is[heard(new.tag)] = false -- a publisher that seals has stored all its jobs
  end
  if is.sealed then
    return 0
  end
  is.sealed = now
  return 1
end

-- All jobs entered before the given time were checked for missing messages.
function does.settle(_, _, new)
  local older_ms = tonumber(new.text) or 0
  for _, name in ipairs(redis.call('HKEYS', batch)) do
    if string.sub(name, 1, 5) == 'from:' then
      heard(string.rep(' ', 14) .. string.sub(name, 6))
      if is[name] and is[name] < older_ms then
        is[name] = false
      end
    end
  end
  return 1
end

function does.cancel()
  if is.cancelled or is.ended then
    return 0
  end
  is.cancelled = now
  does.seal()
  return 1
end

-- Makes a callback pending, once. The first process that sees it publishes it, or a later check.
local function due(callback)
  local name = 'due_' .. callback
  is[name] = is[name] or not is['said_' .. callback] and now
end

-- Makes the callbacks pending that are due now. They stay pending if a job resumes.
local function conclude()
  if not is.sealed then
    return
  end
  local bad = is.failed + is.error
  if bad > 0 then
    due('failure')
  end
  if is.waiting + is.delayed + is.working + is.retrying > 0 then
    is.ended = false
    return
  end
  is.ended = is.ended or now
  due('complete')
  if bad + is.dropped == 0 and not is.cancelled then
    due('success')
  end
end

-- A first write that does not grow lets the rest run when memory is full; not for new jobs,
-- whose messages would be refused.
for i = 2, #ARGV, ROW do
  if ARGV[i] ~= 'enter' then
    redis.call('HDEL', batch, '')
    break
  end
end
local result = {1, 0}
for i = 2, #ARGV, ROW do
  local id = ARGV[i + 1]
  local new = {state = ARGV[i + 2], retries = tonumber(ARGV[i + 3]) or 0,
    token = tonumber(ARGV[i + 4]) or 0, tag = ARGV[i + 5], queue = ARGV[i + 6],
    text = ARGV[i + 7]}
  local job = current[id]
  local unreadable = job and not job.state
  result[#result + 1] = unreadable and 0 or does[ARGV[i]](id, job, new)
  conclude()
end
result[2] = is.cancelled and 1 or 0
if is.due_success or is.due_complete or is.due_failure then
  result[2] = result[2] + 2
end

local bad = {f = true, e = true, x = true}
local records, removed, failed, mended, why = {}, {}, {}, {}, {}
for _, id in ipairs(ids) do
  local before, job = stored[id], current[id]
  if job and job ~= before then
    local done = job.state == 's' -- its message is no longer needed
    records[#records + 1] = id
    records[#records + 1] = job.state ..
      string.format('|%.0f|%.0f|%.0f|', job.retries, job.token, job.since) ..
      (done and '' or job.tag) .. '|' .. ((job.state == 'k' or job.state == 'r') and job.worker or '') .. '|' ..
      (done and '' or job.queue)
    if bad[job.state] then
      failed[#failed + 1] = string.format('%.0f', now)
      failed[#failed + 1] = id
      why[#why + 1] = id
      why[#why + 1] = job.text
    end
  elseif before and not job then
    removed[#removed + 1] = id
  end
  if before and bad[before.state] and not (job and bad[job.state]) then
    mended[#mended + 1] = id
  end
end
if #records > 0 then
  redis.call('HSET', jobs, unpack(records))
end
if #removed > 0 then
  redis.call('HDEL', jobs, unpack(removed))
end
if #mended > 0 then
  redis.call('ZREM', failures, unpack(mended))
  redis.call('HDEL', errors, unpack(mended))
end
if #failed > 0 then
  redis.call('ZADD', failures, unpack(failed))
  redis.call('HSET', errors, unpack(why))
end
local written, gone = {}, {}
for name, value in pairs(is) do
  if value ~= was[name] and value then
    written[#written + 1] = name
    written[#written + 1] = string.format('%.0f', value)
  elseif value ~= was[name] then
    gone[#gone + 1] = name
  end
end
if #gone > 0 then
  redis.call('HDEL', batch, unpack(gone))
end
if #written > 0 then
  redis.call('HSET', batch, unpack(written))
end
return result
