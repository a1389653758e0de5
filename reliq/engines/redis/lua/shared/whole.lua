-- Returns the whole number that a text says; nil where it says none, so was written by another.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
end
