-- Returns the lowest score of the rank that a tag begins with.
-- limits: RANK, RANK_DIGITS
local function head_of_rank(tag)
  return (tonumber(string.sub(tag, 1, RANK_DIGITS), 16) or 0) * RANK
end
