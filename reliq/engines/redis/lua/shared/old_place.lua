-- Returns the score at which a message was leased; the head of its rank where that is no score.
local function old_place(tag, score)
  if not score or #score > 20 or not string.match(score, '^%-?%d+$') then
    return head_of_rank(tag)
  end
  return score
end
