-- Returns the lowest score of the rank that a tag begins with.
-- limits: RANK
local function head_of_rank(tag)
  return (tonumber(string.sub(tag, 1, 2), 16) or 0) * RANK
end
