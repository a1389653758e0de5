-- old_place: returns the score at which a message was leased.
--
-- One that reserve did not write puts it at the head of its rank.
-- use: head_of_rank
local function old_place(tag, score)
  if not score or #score > 20 or not string.match(score, '^%-?%d+$') then
    return head_of_rank(tag)
  end
  return score
end
