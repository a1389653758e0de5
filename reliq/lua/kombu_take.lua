-- kombu_take: takes messages out of one of Kombu's lists, to store them at a target.
--
-- Each message gets a permanent number, by which the target identifies it. Until the target
-- has stored it, it is held here. Only a move to the same target continues with it; after a
-- day, a move to another target may, because the first one seems to be lost (a number is the
-- time, in us). Messages that are already held are returned first.
--
-- ARGV[1] target (of the move)
-- ARGV[2] queue (name)
--
-- Returns {low_water, number, message, ...}: numbers below low_water are settled.
-- keys: kombu_held, kombu_last, waiting
-- limits: DAY_US, MOVED_AT_ONCE, BATCH_BYTES, MOVES_KEPT_MS
local target, queue = ARGV[1], ARGV[2]

-- use: last_held, hold

-- begin: HDEL kombu_held
local last = last_held(redis.call('TIME'))
local low_water = last + 1
local begun = redis.call('HGETALL', kombu_held)
local going, bytes = {}, 0
for i = 1, #begun, 2 do
  local number = tonumber(begun[i])
  local to, size, rest = string.match(begun[i + 1], '^([^|]*)|(%d+)|(.*)$')
  low_water = math.min(low_water, number)
  if string.sub(rest, 1, size) == queue then
    if to ~= target and last - number > DAY_US then
      redis.call('HSET', kombu_held, begun[i], target .. '|' .. size .. '|' .. rest)
      to = target
    end
    if to == target and #going < MOVED_AT_ONCE and (bytes == 0 or bytes < BATCH_BYTES) then
      local message = string.sub(rest, size + 1)
      bytes = bytes + #message
      going[#going + 1] = {number, message}
    end
  end
end
table.sort(going, function(first, second) return first[1] < second[1] end)

if #going == 0 then
  while #going < MOVED_AT_ONCE and bytes < BATCH_BYTES do
    local message = redis.call('LINDEX', waiting, -1)
    if not message then
      break
    end
    last = last + 1
    hold(last, queue, message)
    redis.call('RPOP', waiting)
    bytes = bytes + #message
    going[#going + 1] = {last, message}
  end
  if #going > 0 then
    redis.call('SET', kombu_last, string.format('%d', last), 'PX', MOVES_KEPT_MS)
  end
end

local result = {string.format('%d', low_water)}
for _, item in ipairs(going) do
  result[#result + 1] = string.format('%d', item[1])
  result[#result + 1] = item[2]
end
return result
