-- end_leases: ends leases that are still held: the next pass returns their messages.
--
-- ARGV[1..] tag, token (pairs: delivery tag, lease token)
--
-- Returns the tags whose lease another consumer holds now, or that are gone.
-- keys: unacked_index, unacked, guard

-- use: lease_of

-- begin: ZREM unacked_index
local refused = {}
for i = 1, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  if lease_of(redis.call('HGET', unacked, tag)) == token then
    -- An ended lease is told by its deadline of 0 from one that merely ran out.
    redis.call('ZADD', unacked_index, 'XX', 0, tag)
  else
    refused[#refused + 1] = tag
  end
end
return refused
