-- wake: ends the wait of one notifier, by a token in a list that it waits for.
--
-- KEYS[1] wakeup (LIST)
-- KEYS[2] guard (STRING)
--
-- ARGV[1] token_ttl (ms that the token is there at most)
--
-- Returns 1
-- Redis 6.2 or newer.
local wakeup = KEYS[1]
local token_ttl = ARGV[1]

redis.call('RPUSH', wakeup, '1')
redis.call('PEXPIRE', wakeup, token_ttl)
return 1
