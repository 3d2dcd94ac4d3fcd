-- As `queues/publish`, unless `limit` messages wait already.
-- keys: queue, bell
-- args: message, limit

local length = redis.call('LLEN', queue)
if length >= tonumber(limit) then return {'backlog', length} end
length = redis.call('LPUSH', queue, message)
if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
return length
