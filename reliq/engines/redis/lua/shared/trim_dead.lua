-- trim_dead: keeps the stated cap of the dead letters; returns how many went.
--
-- Those that died too long ago go first, where that is asked for, then the oldest of too many.
-- They are counted as dropped.
-- use: BATCH, add
local function trim_dead(died_before)
  local surplus = died_before
    and redis.call('ZRANGEBYSCORE', dead, '-inf', died_before, 'LIMIT', 0, BATCH) or {}
  if #surplus == 0 then
    local over = math.min(redis.call('ZCARD', dead) - dead_letter_max, BATCH)
    surplus = over > 0 and redis.call('ZRANGE', dead, 0, over - 1) or surplus
  end
  if #surplus > 0 then
    redis.call('ZREM', dead, unpack(surplus))
    redis.call('HDEL', dead_info, unpack(surplus))
    redis.call('HDEL', deliveries, unpack(surplus))
    redis.call('HDEL', messages, unpack(surplus))
    add(stats, 'dropped', #surplus)
  end
  return #surplus
end
