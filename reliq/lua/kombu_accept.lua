-- kombu_accept: stores moved messages in one of Kombu's lists, each once.
--
-- ARGV[1] low_water (lower numbers are settled: a late message with one is ignored)
-- ARGV[2..] number, message (pairs: number of the move; Kombu's JSON)
--
-- Returns for each 1 stored, 0 stored before.
-- keys: publisher, waiting
local low_water = ARGV[1]

-- use: settle_numbers

-- Raises an error for a key of the wrong type before the first write.
redis.call('LLEN', waiting)
local outcomes = {}
local settled = tonumber(redis.call('ZSCORE', publisher, 'low_water') or 0)
for i = 2, #ARGV, 2 do
  local number, message = ARGV[i], ARGV[i + 1]
  local outcome = 0
  if tonumber(number) >= settled and redis.call('ZADD', publisher, 'NX', number, number) == 1 then
    outcome = 1
    redis.call('LPUSH', waiting, message)
  end
  outcomes[#outcomes + 1] = outcome
end
settle_numbers()
return outcomes
