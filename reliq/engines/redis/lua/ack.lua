-- ack: removes finished messages, in any state and under any lease.
--
-- A late ack is accepted, because the work is done. It cancels a pending redelivery and
-- removes the message from the dead letters. Repeating an ack is harmless.
--
-- ARGV[1..] tag (delivery tags)
--
-- Returns the number of messages that were still in the queue.
-- keys: messages, unacked_index, unacked, deliveries, stats, ready, delayed, expiry, dead
-- keys: dead_info, guard

-- use: add

-- The work is done: remove the message from the other keys even if one has the wrong type.
local leased = redis.call('ZREM', unacked_index, unpack(ARGV))
if leased > 0 then
  redis.pcall('HDEL', unacked, unpack(ARGV))
end
if leased < #ARGV then
  -- Some were returned before: they are waiting or dead letters, or were acked.
  local counted = redis.pcall('HEXISTS', stats, 'waiting_bytes') == 1
  for _, tag in ipairs(ARGV) do
    local waited = redis.pcall('ZREM', ready, tag) == 1
    if (redis.pcall('ZREM', delayed, tag) == 1 or waited) and counted then
      add(stats, 'waiting_bytes', -redis.call('HSTRLEN', messages, tag))
    end
  end
  redis.pcall('ZREM', expiry, unpack(ARGV))
  redis.pcall('ZREM', dead, unpack(ARGV))
  redis.pcall('HDEL', dead_info, unpack(ARGV))
end
local found = redis.call('HDEL', messages, unpack(ARGV))
if redis.call('EXISTS', deliveries) == 1 then
  redis.pcall('HDEL', deliveries, unpack(ARGV))
end
if found > 0 then
  add(stats, 'acked', found)
end
return found
