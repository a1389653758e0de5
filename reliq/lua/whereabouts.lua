-- whereabouts: returns whether messages are still in a queue.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns for each 0 not in the queue, 1 in the queue, 2 a dead letter.
-- keys: messages, dead

local places = {}
for i, tag in ipairs(ARGV) do
  places[i] = redis.call('HEXISTS', messages, tag)
  if places[i] == 1 and redis.call('ZSCORE', dead, tag) then
    places[i] = 2
  end
end
return places
