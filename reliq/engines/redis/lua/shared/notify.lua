-- Wakes one waiting consumer, unless a notification is pending.
local function notify()
  if redis.pcall('LLEN', notification) == 0 then
    redis.call('RPUSH', notification, '1')
  end
end
