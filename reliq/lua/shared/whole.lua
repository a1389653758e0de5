-- Returns the whole number in a text; nil for any other text, which reliq did not write.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
end
