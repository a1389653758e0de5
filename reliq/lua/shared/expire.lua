-- Removes expired messages, or turns them into dead letters if the queue keeps them.
-- use: take, failures_of, bury, keep_events, leave
local function expire(tags, kept)
  local leases = kept and failures_of(tags)
  take(tags)
  if kept then
    bury(leases, 'expired', '')
  else
    keep_events(tags, 'gone', 'expired', '')
    leave(tags, 'expired')
  end
end
