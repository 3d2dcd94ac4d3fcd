-- Remembers that a wake-up was acted on. Returns 1, or 0 if it is somebody else's.
-- keys: seen
-- args: token, kept_seconds

local holder = redis.call('HGET', seen, 'token')
if holder and holder ~= token then return 0 end
redis.call('HSET', seen, 'token', token, 'done', 1)
redis.call('EXPIRE', seen, kept_seconds)
return 1
