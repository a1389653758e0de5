-- Returns the total size of the envelopes of messages, in bytes.
-- keys: messages
local function bytes_of(tags)
  local bytes = 0
  for _, tag in ipairs(tags) do
    bytes = bytes + redis.call('HSTRLEN', messages, tag)
  end
  return bytes
end
