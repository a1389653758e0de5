-- leases_of: lists the leases of a consumer or a session, a part of the hash at a time.
--
-- ARGV[1] owner (id of a consumer, or of a session)
-- ARGV[2] of_session (1: of all consumers of that session; 0: of that consumer)
-- ARGV[3] cursor (0 to begin)
--
-- Returns {next cursor or "0", tag, token, tag, token, ...}
-- keys: unacked
-- limits: BATCH
local owner, of_session, cursor = ARGV[1], ARGV[2] == '1', ARGV[3]

-- use: lease_of

-- The id of a consumer is that of its session, a slash and a number.
local function is_theirs(holder)
  if of_session then
    return string.sub(holder, 1, #owner + 1) == owner .. '/'
  end
  return holder == owner
end

local page = redis.call('HSCAN', unacked, cursor, 'COUNT', BATCH)
local result = {page[1]}
for i = 1, #page[2], 2 do
  local token, _, _, holder = lease_of(page[2][i + 1])
  if token and is_theirs(holder) then
    result[#result + 1] = page[2][i]
    result[#result + 1] = token
  end
end
return result
