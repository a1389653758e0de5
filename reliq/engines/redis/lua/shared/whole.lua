-- whole: returns the whole number that a text says; nil where it says none.
--
-- What was written by somebody else counts as not set.
local function whole(text)
  return text and #text < 17 and string.match(text, '^%d+$') and tonumber(text) or nil
end
