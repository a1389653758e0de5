-- Returns for each message its tag and its number of failed deliveries; no owner had it last.
-- use: whole
-- keys: deliveries
local function failures_of(tags)
  local found = redis.call('HMGET', deliveries, unpack(tags))
  for i = 1, #tags do
    found[i] = {tag = tags[i], failed = whole(found[i]), owner = '', token = nil, score = nil}
  end
  return found
end
