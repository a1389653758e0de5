-- renew: extends valid leases.
--
-- ARGV[1] lease_ms (ms from now; the queue's own takes precedence)
-- ARGV[2..] tag, token (pairs: delivery tag, lease token; with the suffix "|begun", its task runs
--         and is acked already: when this lease ends, the message is finished)
--
-- Returns {tags of lost leases, those of them whose message is no longer stored,
--   extension of the other leases in ms}
-- keys: unacked_index, unacked, meta, messages
local lease_ms = tonumber(ARGV[1])

-- use: whole, lease, lease_of

-- begin: ZREM unacked_index
-- clock: now
lease_ms = whole(redis.call('HGET', meta, 'lease')) or lease_ms
local tags = {}
for i = 2, #ARGV, 2 do
  tags[#tags + 1] = ARGV[i]
end
local records = redis.call('HMGET', unacked, unpack(tags))
local extended, lost, gone = {}, {}, {}
for i, tag in ipairs(tags) do
  local token, begun = string.match(ARGV[2 * i + 1], '^(%d+)(.*)$')
  if records[i] and string.match(records[i], '^%d+') == token then
    local _, score, expires, owner = lease_of(begun == '|begun' and records[i])
    if score and score ~= 'begun' then
      lease({now, tag}, {tag, string.format('%s|begun|%s|%s', token, expires, owner)})
    end
    extended[#extended + 1] = now + lease_ms
    extended[#extended + 1] = tag
  else
    lost[#lost + 1] = tag
    if redis.call('HEXISTS', messages, tag) == 0 then
      gone[#gone + 1] = tag
    end
  end
end
if #extended > 0 then
  lease(extended)
end
return {lost, gone, lease_ms}
