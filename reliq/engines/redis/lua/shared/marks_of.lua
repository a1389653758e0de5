-- marks_of: returns {field, tag, "alone" or ""} of the marks of consumers whose id begins so.
local function marks_of(consumers)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', meta)) do
    if string.sub(field, 1, 10 + #consumers) == 'candidate:' .. consumers then
      local tag, alone = string.match(redis.call('HGET', meta, field), '^([^|]*)|?(.*)$')
      found[#found + 1] = {field, tag, alone}
    end
  end
  return found
end
