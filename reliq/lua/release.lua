-- release: returns leased messages to their old place in the queue.
--
-- A nack is a failed delivery: it is counted, and the message may wait (back-off). At the
-- limit, the message is dead-lettered instead. A message that was acked when its task began is
-- finished. An undelivered one gives its start back to the rate of the queue.
--
-- ARGV[1] how ("undelivered": the application never received it, or has not begun it;
--         "released": not counted as failed; "nacked": counted as a failed delivery;
--         "begun": finished)
-- ARGV[2] delivery_limit (failed deliveries; 0: no limit; the queue's own takes precedence)
-- ARGV[3] backoff_min (ms that a message waits after its first failure; 0: none)
-- ARGV[4] backoff_max (ms)
-- ARGV[5] dead_letter_max (messages)
-- ARGV[6] error (text; of the message if it is dead-lettered)
-- ARGV[7..] tag, token (pairs: delivery tag, lease token)
--
-- Returns {refused, died}: the tags without this lease (leased again, or gone), which are
--   unchanged; and {tag, count, ...} of those that were dead-lettered.
-- keys: ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info, stats, meta
-- keys: messages, job_events, guard
local how, delivery_limit = ARGV[1], tonumber(ARGV[2])
local backoff_min, backoff_max = tonumber(ARGV[3]), tonumber(ARGV[4])
local dead_letter_max, error = tonumber(ARGV[5]), ARGV[6]

-- clock: now
-- use: add, whole, notify, intact, held_leases, tags_of, backoff, count_failures, note_failures
-- use: bury, wait, end_leases, permitted, finish_begun

intact({unacked, deliveries, dead_info, stats, messages},
  {ready, delayed, unacked_index, expiry, dead, job_events})
permitted(unacked, ready)
local own_limit, own_rate, rate_state =
  unpack(redis.call('HMGET', meta, 'delivery_limit', 'rate', 'rate_state'))
delivery_limit = whole(own_limit) or delivery_limit

local all, refused = held_leases(7)
local held, died, back, dead_ones = finish_begun(all, how == 'begun'), {}, {}, {}
for _, lease in ipairs(held) do
  if how == 'nacked' then
    lease.failed = (lease.failed or 0) + 1
    lease.due = backoff(lease.failed)
  end
  if how == 'nacked' and delivery_limit > 0 and lease.failed >= delivery_limit then
    dead_ones[#dead_ones + 1] = lease
    died[#died + 1] = lease.tag
    died[#died + 1] = lease.failed
  else
    lease.failed = lease.failed or 0
    back[#back + 1] = lease
  end
end
if #held > 0 then
  if how ~= 'undelivered' then
    count_failures(held)
  end
  if how == 'nacked' then
    note_failures(held, 'requeued')
  end
  bury(dead_ones, 'delivery_limit', error)
  wait(back)
end
if #all > 0 then
  end_leases(tags_of(all))
end
if how == 'undelivered' and own_rate and #back > 0 then
  -- use: read_rate, keep_rate

  local rate = read_rate(own_rate, rate_state)
  for _, lease in ipairs(rate and back or {}) do
    local token = tonumber(lease.token)
    for _, start in ipairs(rate) do
      if start[2] <= token and token < start[2] + start[3] then
        start[4] = math.max(start[4] - 1, 0)
      end
    end
  end
  if rate then
    keep_rate(rate, 0, 0)
  end
end
if #back > 0 then
  add(stats, how, #back)
  notify()
end
return {refused, died}
