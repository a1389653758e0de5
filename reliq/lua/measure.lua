-- measure: reads the counts, the ledger and the ages of a queue, at one instant.
--
-- Returns {1 exists or 0, ready, delayed, unacked, dead, messages, consumers,
--   {counter, value, ...}, arguments, 1 paused or 0, now in ms,
--   delayed messages that are due, {rank, messages ready, tag of the first, ...},
--   {partitions, end}: as in layout, nil if not set,
--   {declared limits, concurrency, rate, state of the rate}: nil if not set}
-- keys: messages, ready, delayed, unacked_index, dead, stats, meta, consumers
-- limits: RANK, HIGHEST_RANK

-- clock: now
-- Two queries for each rank with messages. The scores only grow, so the loop ends after at
-- most 256 ranks, even with invalid stored scores.
local ranks, from = {}, '-inf'
while from do
  local head = redis.call('ZRANGEBYSCORE', ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    break
  end
  local rank = math.max(0, math.min(HIGHEST_RANK, math.floor(tonumber(head[2]) / RANK)))
  local beyond = rank < HIGHEST_RANK and string.format('%.0f', (rank + 1) * RANK)
  ranks[#ranks + 1] = rank
  ranks[#ranks + 1] = redis.call('ZCOUNT', ready, from, beyond and '(' .. beyond or '+inf')
  ranks[#ranks + 1] = head[1]
  from = beyond
end
return {
  redis.call('EXISTS', meta),
  redis.call('ZCARD', ready),
  redis.call('ZCARD', delayed),
  redis.call('ZCARD', unacked_index),
  redis.call('ZCARD', dead),
  redis.call('HLEN', messages),
  redis.call('HLEN', consumers),
  redis.call('HGETALL', stats),
  redis.call('HGET', meta, 'arguments') or '',
  redis.call('HEXISTS', meta, 'paused'),
  now,
  redis.call('ZCOUNT', delayed, '-inf', now),
  ranks,
  {redis.call('HGET', meta, 'partitions'), redis.call('HGET', meta, 'partitions_end')},
  {redis.call('HGET', meta, 'declared_limits'), redis.call('HGET', meta, 'concurrency'),
    redis.call('HGET', meta, 'rate'), redis.call('HGET', meta, 'rate_state')},
}
