-- Returns the tags of leases or messages.
local function tags_of(leases)
  local tags = {}
  for i, lease in ipairs(leases) do
    tags[i] = lease.tag
  end
  return tags
end
