-- wake: ends the wait of one notifier, by a token in a list that it waits for.
--
-- ARGV[1] token_ttl (ms that the token is there at most)
--
-- Returns 1
-- keys: wakeup, guard
local token_ttl = ARGV[1]

redis.call('RPUSH', wakeup, '1')
redis.call('PEXPIRE', wakeup, token_ttl)
return 1
