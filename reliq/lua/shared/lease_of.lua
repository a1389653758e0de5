-- Returns token, score, expires and consumer of a lease record; nil for any other text.
local function lease_of(record)
  return string.match(record or '', '^(%d+)|([^|]*)|([^|]*)|(.*)$')
end
