-- Adds the bytes of messages that begin (1) or end (-1) to wait, if the queue counts them.
-- use: add
-- keys: stats, messages
local function count_bytes(tags, sign)
  if redis.pcall('HEXISTS', stats, 'waiting_bytes') == 1 then
    local bytes = 0
    for _, tag in ipairs(tags) do
      bytes = bytes + redis.call('HSTRLEN', messages, tag)
    end
    -- Not below 0: older messages may not be counted.
    if add(stats, 'waiting_bytes', sign * bytes) < 0 then
      redis.call('HSET', stats, 'waiting_bytes', 0)
    end
  end
end
