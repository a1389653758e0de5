-- Returns the tags of leases or messages.
local function tags_of(leases)
  local tags = {}
  for i = 1, #leases do
    tags[i] = leases[i].tag
  end
  return tags
end
