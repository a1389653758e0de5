-- Lets one who waits have a look, unless somebody is called already.
local function notify()
  if redis.pcall('LLEN', notification) == 0 then
    redis.call('RPUSH', notification, '1')
  end
end
