-- ack: removes finished messages, in any state and under any lease.
--
-- A late ack is accepted, because the work is done. It cancels a pending redelivery and
-- removes the message from the dead letters. Repeating an ack is harmless.
--
-- ARGV[1..] tag (delivery tags; then "" if the queue has limits: others may wait for the slots)
--
-- Returns the number of messages that were still in the queue.
-- keys: unacked_index, unacked, guard

-- use: leave

local limited = ARGV[#ARGV] == '' and table.remove(ARGV)
-- Not by end_leases, which adds 3 % to the script of the most frequent step.
local ended = redis.call('ZREM', unacked_index, unpack(ARGV))
if ended > 0 then
  redis.pcall('HDEL', unacked, unpack(ARGV))
end
if ended < #ARGV then
  -- use: take, unbury

  -- Some were returned before: they are waiting or dead letters, or were acked.
  for _, tag in ipairs(ARGV) do
    take({tag})
  end
  unbury(ARGV)
end
if limited and redis.pcall('EXISTS', ready) == 1 then
  -- use: notify

  notify()
end
return leave(ARGV, 'acked')
