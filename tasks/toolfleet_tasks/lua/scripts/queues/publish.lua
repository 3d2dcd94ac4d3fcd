-- Puts a message into a queue and notifies whoever waits for it.
-- keys: queue, notify_key
-- args: message

local length = redis.call('LPUSH', queue, message)
if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
return length
