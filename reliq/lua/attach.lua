-- attach: records that a consumer begins or stops consuming from a queue.
--
-- ARGV[1] consumer (id)
-- ARGV[2] mark (of its subscriptions and their connection; empty: it left or died)
-- ARGV[3] seen (the mark of a dead consumer: with another mark, nothing is done; empty: any)
-- ARGV[4] silent (ms since its last sign of life, from which the queue's x-expires counts)
--
-- Returns 1, or 0 when there is no such queue to consume from, or when it was deleted with its
--   last consumer (auto_delete).
-- keys: meta, consumers, guard
local consumer, mark, seen, silent = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- use: whole, forget_marks, wipe

-- begin: HDEL consumers
if seen ~= '' and redis.call('HGET', consumers, consumer) ~= seen then
  return 1
end
if mark ~= '' then
  if redis.call('HEXISTS', meta, 'exists') == 0 then
    return 0
  end
  redis.call('HSET', consumers, consumer, mark)
  return 1
end
-- Remove its marks, except one that is needed to judge its ended lease.
forget_marks(consumer .. '/')
local known = redis.call('HDEL', consumers, consumer) == 1
if known and redis.call('HLEN', consumers) == 0 and redis.call('EXISTS', meta) == 1 then
  if redis.call('HGET', meta, 'auto_delete') == '1' then
    wipe()
    return 0
  end
  local clock = redis.call('TIME')
  local used = clock[1] * 1000 + math.floor(clock[2] / 1000) - silent
  redis.call('HSET', meta, 'used_at', math.max(used, whole(redis.call('HGET', meta, 'used_at')) or 0))
end
return 1
