-- Returns for each message its tag and its number of failed deliveries; no owner had it last.
-- use: whole
-- keys: deliveries
local function failures_of(tags)
  local found = redis.call('HMGET', deliveries, unpack(tags))
  for i, tag in ipairs(tags) do
    found[i] = {tag = tag, failed = whole(found[i]), owner = '', token = nil, score = nil}
  end
  return found
end
