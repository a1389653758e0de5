-- forget_marks: removes the marks of consumers that hold their poison candidate no more.
--
-- A mark whose message is still unacked stays: its ended lease is yet to be judged by it.
-- use: marks_of, lease_of
local function forget_marks(consumers)
  for _, mark in ipairs(marks_of(consumers)) do
    local record = redis.pcall('HGET', unacked, mark[2])
    local _, _, _, owner = lease_of(type(record) == 'string' and record)
    if mark[1] ~= 'candidate:' .. (owner or '') then
      redis.call('HDEL', meta, mark[1])
    end
  end
end
