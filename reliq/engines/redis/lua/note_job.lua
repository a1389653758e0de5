-- note_job: notes how far a job is, and what it reports, while it is open.
--
-- The counters of the batch have no part in it. What a delivery says that another one has
-- followed is not noted, nor what comes when the job has ended.
--
-- ARGV[1] job (its id)
-- ARGV[2] retries (which try says it)
-- ARGV[3] token (of which delivery of it)
-- ARGV[4] queue (whose token that is)
-- ARGV[5] done (a number; "": nothing is said of how far it is)
-- ARGV[6] total (of so many)
-- ARGV[7] text (what it is at)
-- ARGV[8] report (text; "": none)
--
-- Returns 1 when it is noted; 0 when there is no such batch or open job, it is said by an
-- earlier delivery, or the job has reported as often as it may.
-- keys: batch, jobs, progress, progressed, reports, guard
-- limits: REPORTS_OF_A_JOB, REPORTS_KEPT, PROGRESS_LISTED
local job, retries, token, queue = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local done, total, text, report = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local is_open = {w = true, d = true, k = true, r = true}

if redis.call('HEXISTS', batch, 'created') == 0 then
  return 0
end
local state, known_retries, known_token, known_queue =
  string.match(redis.call('HGET', jobs, job) or '', '^(%l)|(%d+)|(%d+)|%d+|[^|]*|[^|]*|(.*)$')
if not is_open[state or ''] or retries < tonumber(known_retries) then
  return 0
end
if retries == tonumber(known_retries) and queue == known_queue
  and token < tonumber(known_token) then
  return 0
end
local before = redis.call('HGET', progress, job) or ''
-- Raises where one of these keys holds something else, before the first write.
redis.call('ZCARD', progressed)
redis.call('LLEN', reports)
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local reported, rest = string.match(before, '^(%d+)|(.*)$')
reported, rest = tonumber(reported or 0), rest or '0||0|'
local noted = 0
if report ~= '' and reported < REPORTS_OF_A_JOB then
  reported, noted = reported + 1, 1
end
if done ~= '' then
  rest = now .. '|' .. done .. '|' .. total .. '|' .. text
elseif noted == 0 then
  return 0
end
redis.call('HSET', progress, job, string.format('%.0f', reported) .. '|' .. rest)
if noted == 1 then
  redis.call('LPUSH', reports, now .. '|' .. #job .. '|' .. job .. report)
  redis.call('LTRIM', reports, 0, REPORTS_KEPT - 1)
end
if done ~= '' then
  redis.call('ZADD', progressed, now, job)
  redis.call('ZREMRANGEBYRANK', progressed, 0, -PROGRESS_LISTED - 1)
end
return done ~= '' and 1 or noted
