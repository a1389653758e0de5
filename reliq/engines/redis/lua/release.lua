-- release: returns leased messages to their old place in the queue.
--
-- A nack is a failed delivery: it is counted, and the message may wait (back-off). At the
-- limit, the message is dead-lettered instead.
--
-- ARGV[1] how ("undelivered": the application never received it;
--         "released": not counted as failed; "nacked": counted as a failed delivery)
-- ARGV[2] delivery_limit (failed deliveries; 0: no limit; the queue's own takes precedence)
-- ARGV[3] backoff_min (ms that a message waits after its first failure; 0: none)
-- ARGV[4] backoff_max (ms)
-- ARGV[5] error (text; of the message if it is dead-lettered)
-- ARGV[6..] tag, token (pairs: delivery tag, lease token)
--
-- Returns {refused, died}: the tags without this lease (leased again, or gone), which are
--   unchanged; and {tag, count, ...} of those that were dead-lettered.
-- keys: ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info, stats, meta
-- keys: messages, job_events, guard
local how, delivery_limit = ARGV[1], tonumber(ARGV[2])
local backoff_min, backoff_max, error = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- use: add, whole, notify, intact, lease_of, old_place, backoff, keep_events, note_failures
-- use: permitted

intact({unacked, deliveries, dead_info, stats, messages},
  {ready, delayed, unacked_index, expiry, dead, job_events})
permitted(unacked, ready)
-- clock: now
local limits = redis.call('HMGET', meta, 'delivery_limit', 'max_bytes')
delivery_limit = whole(limits[1]) or delivery_limit

local refused, died, returned, bytes, noted = {}, {}, 0, 0, {}
for i = 6, #ARGV, 2 do
  local tag, token = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', unacked, tag)
  local held, score, expires, owner = lease_of(record)
  if held == token then
    if how == 'released' then
      redis.call('HSETNX', deliveries, tag, 0)
    end
    redis.call('ZREM', unacked_index, tag)
    redis.call('HDEL', unacked, tag)
    local failed = 0
    if how == 'nacked' then
      failed = add(deliveries, tag, 1)
      noted[#noted + 1] = table.concat(
        {tag, string.format('%.0f', now), 'requeued', failed, owner}, '|')
    end
    if delivery_limit > 0 and failed >= delivery_limit then
      redis.call('ZADD', dead, now, tag)
      redis.call('HSET', dead_info, tag, 'delivery_limit|' .. failed .. '|' .. owner .. '|' .. error)
      keep_events({tag}, 'dead', 'delivery_limit', error)
      died[#died + 1] = tag
      died[#died + 1] = failed
    else
      local wait = backoff(failed)
      if wait > 0 then
        redis.call('ZADD', delayed, now + wait, tag)
      else
        redis.call('ZADD', ready, old_place(tag, score), tag)
      end
      if whole(expires) then
        redis.call('ZADD', expiry, expires, tag)
      end
      if limits[2] then
        bytes = bytes + redis.call('HSTRLEN', messages, tag)
      end
      returned = returned + 1
    end
  else
    refused[#refused + 1] = tag
  end
end
note_failures(noted)
if #died > 0 then
  add(stats, 'dead_lettered', #died / 2)
  add(stats, 'dead:delivery_limit', #died / 2)
end
if bytes > 0 then
  add(stats, 'waiting_bytes', bytes)
end
if returned > 0 then
  add(stats, how, returned)
  notify()
end
return {refused, died}
