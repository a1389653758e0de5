-- Makes messages ready, after those that are ready at their rank.
-- use: whole, add, head_of_rank
-- keys: stats, meta, ready, delayed
local function promote(tags)
  redis.call('ZREM', delayed, unpack(tags))
  local published = whole(redis.call('HGET', stats, 'published')) or 0
  local scored, sequence = {}, published + add(meta, 'promoted', #tags) - #tags
  for i, tag in ipairs(tags) do
    scored[2 * i - 1] = head_of_rank(tag) + sequence + i
    scored[2 * i] = tag
  end
  redis.call('ZADD', ready, unpack(scored))
end
