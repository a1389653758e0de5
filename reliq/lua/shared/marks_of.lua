-- Returns field -> tag of the marks of consumers whose id has this prefix.
-- keys: meta
local function marks_of(consumers)
  local marks = {}
  for _, field in ipairs(redis.call('HKEYS', meta)) do
    if string.sub(field, 1, 10 + #consumers) == 'candidate:' .. consumers then
      marks[field] = string.match(redis.call('HGET', meta, field), '^[^|]*')
    end
  end
  return marks
end
