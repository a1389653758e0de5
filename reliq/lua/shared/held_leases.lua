-- Returns the leases that ARGV names from an index on, as pairs of tag and token; the refused tags.
-- use: read_leases
local function held_leases(first)
  local tags, tokens, held, refused = {}, {}, {}, {}
  for i = first, #ARGV, 2 do
    tags[#tags + 1] = ARGV[i]
    tokens[#tokens + 1] = ARGV[i + 1]
  end
  for i, lease in ipairs(read_leases(tags)) do
    if lease.token == tokens[i] and not held[lease.tag] then
      held[#held + 1] = lease
      held[lease.tag] = true -- named twice, it is refused the second time
    else
      refused[#refused + 1] = lease.tag
    end
  end
  return held, refused
end
