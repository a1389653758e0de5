-- whereabouts: returns whether messages are still in a queue.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns for each 0 not in the queue, 1 in the queue, 2 a dead letter.
-- keys: messages, dead

local found = {}
for i, tag in ipairs(ARGV) do
  found[i] = redis.call('HEXISTS', messages, tag)
  if found[i] == 1 and redis.call('ZSCORE', dead, tag) then
    found[i] = 2
  end
end
return found
