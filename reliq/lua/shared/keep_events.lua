-- Stores events of jobs for their batches, numbered like lease tokens, without the bodies.
-- use: next_number, add, without_body
-- keys: messages, stats, job_events
-- limits: JOB_MARK
local function keep_events(tags, what, reason, err)
  for _, tag in ipairs(tags) do
    if string.byte(tag, -1) == JOB_MARK then
      local envelope = redis.call('HGET', messages, tag) or ''
      local number = next_number(1)
      add(stats, 'job_events', 1)
      redis.call('ZADD', job_events, number, table.concat({string.format('%.0f', number), what,
        tag, reason, #err, err}, '|') .. without_body(envelope))
    end
  end
end
