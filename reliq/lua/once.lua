-- once: takes, extends, finishes or releases a claim.
--
-- ARGV[1] token (of the caller)
-- ARGV[2] keep (ms from now; 0: release it)
-- ARGV[3] finished (1: the claimed work is done; 0: it is not)
--
-- Returns -1 when the claim is or was the caller's; 0 when another caller has finished it; else
--   the remaining ms of another caller's claim.
-- keys: once, guard
local token, keep, finished = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local holder = redis.call('GET', once)
if holder == '+' .. token then
  return -1 -- a retry, after the reply to an earlier try was lost
elseif holder and string.sub(holder, 1, 1) == '+' then
  return 0
elseif holder and holder ~= token then
  return math.max(redis.call('PTTL', once), 1)
end
if keep == 0 then
  redis.call('DEL', once)
  return -1
end
if holder then
  -- A first write that does not grow lets the rest run when memory is full.
  redis.call('PEXPIRE', once, keep)
end
if finished then
  redis.call('SET', once, '+' .. token, 'PX', keep)
elseif not holder then
  redis.call('SET', once, token, 'PX', keep)
end
return -1
