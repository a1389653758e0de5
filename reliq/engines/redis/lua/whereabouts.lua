-- whereabouts: says whether messages are still in a queue.
--
-- KEYS[1] messages (HASH)
-- KEYS[2] dead (ZSET)
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns for each 0 it is not there, 1 it is, 2 it is a dead letter.
-- Redis 6.2 or newer.
local messages, dead = KEYS[1], KEYS[2]

local found = {}
for i, tag in ipairs(ARGV) do
  found[i] = redis.call('HEXISTS', messages, tag)
  if found[i] == 1 and redis.call('ZSCORE', dead, tag) then
    found[i] = 2
  end
end
return found
