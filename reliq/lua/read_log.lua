-- read_log: returns the entries of an exchange's log after a place. Changes nothing.
--
-- ARGV[1] place (returned by the call before; the first one passes 0)
-- ARGV[2] ttl (ms; older entries are skipped)
-- ARGV[3] n (entries at most; 0: only return the end of the log)
--
-- Returns {place after these entries, {tag|envelope, ...}}
-- keys: log
local place, ttl, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local last = redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')
if not last[2] then
  return {'0', {}} -- it has expired, or was lost: what comes now is new
end
if place > tonumber(last[2]) then
  place = 0 -- it was lost, and began anew by a clock that is behind
end
local clock = redis.call('TIME')
local after = math.max(place, clock[1] * 1000000 + clock[2] - ttl * 1000)
local entries = redis.call('ZRANGEBYSCORE', log, string.format('(%d', after), '+inf',
  'LIMIT', 0, n)
if #entries == 0 then
  return {last[2], entries}
end
return {redis.call('ZSCORE', log, entries[#entries]), entries}
