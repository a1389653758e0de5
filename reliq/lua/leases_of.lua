-- leases_of: lists the leases of a consumer or a session, one page of the hash at a time.
--
-- ARGV[1] owner (id of a consumer; or id of a session and a slash, for all its consumers)
-- ARGV[2] cursor (0 to begin)
--
-- Returns {next cursor or "0", tag, token, tag, token, ...}
-- keys: unacked
-- limits: BATCH
local owner, cursor = ARGV[1], ARGV[2]

-- use: lease_of

-- The id of a consumer is that of its session, a slash and a number.
local is_session = string.sub(owner, -1) == '/'
local page = redis.call('HSCAN', unacked, cursor, 'COUNT', BATCH)
local result = {page[1]}
for i = 1, #page[2], 2 do
  local token, _, _, holder = lease_of(page[2][i + 1])
  if token and (is_session and string.sub(holder, 1, #owner) or holder) == owner then
    result[#result + 1] = page[2][i]
    result[#result + 1] = token
  end
end
return result
