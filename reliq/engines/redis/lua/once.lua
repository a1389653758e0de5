-- once: takes a claim, extends one's own, marks it as finished, or gives it up.
--
-- ARGV[1] token (of who asks)
-- ARGV[2] keep (ms from now; 0: give it up)
-- ARGV[3] finished (1: what was claimed is done; 0: it is not)
--
-- Returns -1 when the claim is, or was, one's own; 0 when another has finished it; else
--   the ms that the claim of another still counts unless it is extended.
-- keys: once, guard
local token, keep, finished = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local holder = redis.call('GET', once)
if holder == '+' .. token then
  return -1 -- the reply to an earlier try was lost
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
