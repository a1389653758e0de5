-- Adds the bytes of messages that begin (1) or end (-1) to wait, if the queue counts them.
-- use: add, bytes_of
-- keys: stats
local function count_bytes(tags, sign)
  if redis.pcall('HEXISTS', stats, 'waiting_bytes') == 1 then
    -- Not below 0: older messages may not be counted.
    if add(stats, 'waiting_bytes', sign * bytes_of(tags)) < 0 then
      redis.call('HSET', stats, 'waiting_bytes', 0)
    end
  end
end
