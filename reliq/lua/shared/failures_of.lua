-- Returns for each message its tag and its number of failed deliveries; no owner had it last.
-- use: whole
-- keys: deliveries
local function failures_of(tags)
  local failures = redis.call('HMGET', deliveries, unpack(tags))
  for i = 1, #tags do
    failures[i] = {tag = tags[i], failed = whole(failures[i]), owner = '', token = nil, score = nil}
  end
  return failures
end
