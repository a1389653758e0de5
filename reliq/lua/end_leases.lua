-- end_leases: ends valid leases, whose messages the next pass returns.
--
-- ARGV[1..] tag, token (pairs: delivery tag, lease token)
--
-- Returns the tags without this lease (leased again, or gone).
-- keys: unacked_index, unacked, guard

-- use: lease_of, lease

-- begin: ZREM unacked_index
local ended, refused = {}, {}
for i = 1, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  if lease_of(redis.call('HGET', unacked, tag)) == token then
    -- A deadline of 0 distinguishes an ended lease from an expired one.
    ended[#ended + 1] = 0
    ended[#ended + 1] = tag
  else
    refused[#refused + 1] = tag
  end
end
if #ended > 0 then
  lease(ended)
end
return refused
