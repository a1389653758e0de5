-- locate: reads the data of one message, at one instant, without changes.
--
-- ARGV[1] tag (delivery tag)
--
-- Returns {} if it is not in the queue; else {state, score, number of messages before it,
--   envelope, lease record or dead-letter record or false, failed deliveries or false,
--   expiry time or false}
-- keys: messages, ready, delayed, unacked_index, unacked, deliveries, expiry, dead, dead_info
local tag = ARGV[1]

local envelope = redis.call('HGET', messages, tag)
if not envelope then
  return {}
end
-- Returns the data of the message in this state; nil if it is in another.
local function in_place(name, before, score, record)
  if score then
    return {name, score, before, envelope, record, redis.call('HGET', deliveries, tag),
      redis.call('ZSCORE', expiry, tag)}
  end
end

return in_place('ready', redis.call('ZRANK', ready, tag), redis.call('ZSCORE', ready, tag), false)
  or in_place('delayed', redis.call('ZRANK', delayed, tag), redis.call('ZSCORE', delayed, tag), false)
  or in_place('unacked', redis.call('ZRANK', unacked_index, tag),
    redis.call('ZSCORE', unacked_index, tag), redis.call('HGET', unacked, tag))
  or in_place('dead', redis.call('ZRANK', dead, tag), redis.call('ZSCORE', dead, tag),
    redis.call('HGET', dead_info, tag))
  or {}
