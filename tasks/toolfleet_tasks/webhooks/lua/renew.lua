-- Keeps a claim for `ms` more. Returns 1, or 0 if it is somebody else's.
-- keys: seen
-- args: token, ms

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('HGET', seen, 'token') ~= token then return 0 end
redis.call('HSET', seen, 'until', now + ms)
return 1
