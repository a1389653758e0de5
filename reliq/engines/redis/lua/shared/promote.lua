-- promote: puts messages behind what is ready at their rank now.
-- use: add, whole, head_of_rank
local function promote(tags)
  local before = add(meta, 'promoted', #tags) - #tags
  local sequence = (whole(redis.call('HGET', stats, 'published')) or 0) + before
  local scored = {}
  for i, tag in ipairs(tags) do
    scored[2 * i - 1] = head_of_rank(tag) + sequence + i
    scored[2 * i] = tag
  end
  redis.call('ZADD', ready, unpack(scored))
end
