-- Wakes one waiting consumer, unless a notification is pending.
-- keys: notification
local function notify()
  if redis.pcall('LLEN', notification) == 0 then
    redis.call('RPUSH', notification, '1')
  end
end
