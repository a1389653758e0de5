-- leases_of: lists the leases of one consumer, a part of the hash at a time.
--
-- KEYS[1] unacked (HASH)
--
-- ARGV[1] consumer (id; one that ends with a slash stands for all that begin so)
-- ARGV[2] cursor (0 to begin)
-- ARGV[3] count (entries looked at, about)
--
-- Returns {next cursor or "0", tag, token, tag, token, ...}
-- Redis 6.2 or newer.
local unacked = KEYS[1]
local consumer, cursor, count = ARGV[1], ARGV[2], ARGV[3]

-- Returns token, score, expires and consumer of a lease record; nil of another text.
local function lease_of(record)
  return string.match(record or '', '^(%d+)|([^|]*)|([^|]*)|(.*)$')
end

local page = redis.call('HSCAN', unacked, cursor, 'COUNT', count)
local beginning = string.sub(consumer, -1) == '/'
local result = {page[1]}
for i = 1, #page[2], 2 do
  local token, _, _, owner = lease_of(page[2][i + 1])
  if owner == consumer
    or (owner and beginning and string.sub(owner, 1, #consumer) == consumer) then
    result[#result + 1] = page[2][i]
    result[#result + 1] = token
  end
end
return result
