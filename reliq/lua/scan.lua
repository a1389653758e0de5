-- scan: reads messages of one state from a given position, in order, without changes.
--
-- ARGV[1] place (ready, delayed, unacked or dead)
-- ARGV[2] score (first score; empty: from the first message)
-- ARGV[3] skip (number of messages to skip from there)
-- ARGV[4] count (maximum number of messages to scan)
-- ARGV[5] room (maximum bytes of envelopes to read; a larger envelope is omitted)
-- ARGV[6] whole (bytes: a larger envelope is returned without its body)
-- ARGV[7] text (filter: text in the envelope after the body; empty: all)
--
-- Returns {number of scanned messages, score and skip of the next position (empty: no more),
--   {its number among the scanned, tag, score, bytes of the envelope, envelope or false, lease
--   record or dead-letter record or false, failed deliveries or false, ...}}
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, dead, dead_info
local place, score, skip, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local room, whole, text = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- use: without_body

local source = ready
if place == 'delayed' then
  source = delayed
elseif place == 'unacked' then
  source = unacked_index
elseif place == 'dead' then
  source = dead
end
local entries
if score == '' then
  entries = redis.call('ZRANGE', source, skip, skip + count - 1, 'WITHSCORES')
else
  entries = redis.call('ZRANGEBYSCORE', source, score, '+inf', 'WITHSCORES', 'LIMIT', skip, count)
end
local result, examined, read, last, of_last = {}, 0, 0, score, skip
for i = 1, #entries, 2 do
  local tag, size = entries[i], redis.call('HSTRLEN', messages, entries[i])
  if examined > 0 and size <= room and read + size > room then
    break
  end
  local envelope = false
  if size <= room then
    envelope = redis.call('HGET', messages, tag)
    read = read + size
  end
  -- Most envelopes do not contain the text at all.
  local fits = text == '' or envelope and string.find(envelope, text, 1, true)
  if fits and envelope and (size > whole or text ~= '') then
    local rest = without_body(envelope)
    fits = string.find(rest, text, 1, true)
    envelope = size > whole and rest or envelope
  end
  if fits then
    result[#result + 1] = examined + 1
    result[#result + 1] = tag
    result[#result + 1] = entries[i + 1]
    result[#result + 1] = size
    result[#result + 1] = envelope
    if place == 'dead' then
      result[#result + 1] = redis.call('HGET', dead_info, tag)
    else
      result[#result + 1] = redis.call('HGET', unacked, tag)
    end
    result[#result + 1] = redis.call('HGET', deliveries, tag)
  end
  examined = examined + 1
  if entries[i + 1] == last then
    of_last = of_last + 1
  else
    last, of_last = entries[i + 1], 1
  end
end
if examined == #entries / 2 and examined < count then
  return {examined, '', '0', result}
end
return {examined, last, of_last, result}
