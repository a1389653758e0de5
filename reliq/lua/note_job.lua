-- note_job: records the progress and the reports of an open job.
--
-- It does not change the counters of the batch. Notes of an outdated delivery and of an ended
-- job are ignored.
--
-- ARGV[1] job (its id)
-- ARGV[2] retries (number of the try)
-- ARGV[3] token (of the delivery)
-- ARGV[4] queue (of the token)
-- ARGV[5] done (a number; "": no progress)
-- ARGV[6] total (a number; 0: not stated)
-- ARGV[7] text (of the progress)
-- ARGV[8] report (text; "": none)
--
-- Returns 1 when it was recorded; 0 when there is no such batch or open job, a later delivery
-- is known, or the job has reached its limit of reports.
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
-- Raises an error for a key of the wrong type before the first write.
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
