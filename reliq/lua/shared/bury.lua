-- Turns messages into dead letters, of which the oldest are dropped above the cap.
-- use: record_dead, keep_events, tags_of, trim_dead
local function bury(leases, reason, err)
  if #leases > 0 then
    record_dead(leases, reason, err)
    keep_events(tags_of(leases), 'dead', reason, err)
    trim_dead()
  end
end
