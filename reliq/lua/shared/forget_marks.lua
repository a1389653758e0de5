-- Removes marks of consumers; keeps a mark while its message is unacked, to judge its ended lease.
-- use: marks_of, lease_of
-- keys: unacked, meta
local function forget_marks(consumers)
  for field, tag in pairs(marks_of(consumers)) do
    local record = redis.pcall('HGET', unacked, tag)
    local _, _, _, owner = lease_of(type(record) == 'string' and record)
    if field ~= 'candidate:' .. (owner or '') then
      redis.call('HDEL', meta, field)
    end
  end
end
