-- As `queues/publish`, unless `limit` messages wait already.
-- keys: queue, notify_key
-- args: message, limit

local length = redis.call('LLEN', queue)
if length >= tonumber(limit) then return {'backlog', length} end
length = redis.call('LPUSH', queue, message)
if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
return length
