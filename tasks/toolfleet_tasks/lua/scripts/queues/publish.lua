-- Puts a message into a queue and rings its bell.
-- keys: queue, bell
-- args: message

local length = redis.call('LPUSH', queue, message)
if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
return length
