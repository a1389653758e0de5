-- wake: ends the wait of one notifier, by a token in its list.
--
-- ARGV[1] token_ttl (ms after which the token expires)
--
-- Returns 1
-- keys: wakeup, guard
local token_ttl = ARGV[1]

redis.call('RPUSH', wakeup, '1')
redis.call('PEXPIRE', wakeup, token_ttl)
return 1
