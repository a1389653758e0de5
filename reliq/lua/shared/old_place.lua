-- Returns the score of a message when it was leased; if invalid, the lowest score of its rank.
-- use: head_of_rank
local function old_place(tag, score)
  if not score or #score > 20 or not string.match(score, '^%-?%d+$') then
    return head_of_rank(tag)
  end
  return score
end
