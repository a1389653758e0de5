-- Returns an envelope without its body, which is its first field.
local function without_body(envelope)
  local sizes = {[0xc4] = 1, [0xc5] = 2, [0xc6] = 4, [0xd9] = 1, [0xda] = 2, [0xdb] = 4}
  local kind = string.byte(envelope, 3) or 0
  local digits = sizes[kind] or 0
  local size = digits == 0 and kind - 0xa0 or 0
  for i = 4, 3 + digits do
    size = size * 256 + (string.byte(envelope, i) or 0)
  end
  return '\152\1\196\0' .. string.sub(envelope, 4 + digits + size)
end
