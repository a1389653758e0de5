-- Applies the cap of dead letters: drops the oldest. Returns the number of dropped ones.
-- use: unbury, leave
-- keys: dead
-- limits: BATCH
local function trim_dead()
  local surplus = math.min(redis.call('ZCARD', dead) - dead_letter_max, BATCH)
  if surplus > 0 then
    local oldest = redis.call('ZRANGE', dead, 0, surplus - 1)
    unbury(oldest)
    leave(oldest, 'dropped')
  end
  return math.max(surplus, 0)
end
