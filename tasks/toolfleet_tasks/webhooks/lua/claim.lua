-- Claims a wake-up for `ms`. Returns 0: it is ours; -1: it was done; or for how many ms it is somebody else's.
-- keys: seen
-- args: token, ms, kept_seconds

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = redis.call('HMGET', seen, 'token', 'until', 'done')
if found[3] then return -1 end
local rest = (tonumber(found[2]) or 0) - now
if rest > ms + 1000 then -- the server's clock was set back: it must not hold for that much longer
  rest = tonumber(ms)
  redis.call('HSET', seen, 'until', now + rest)
end
if found[1] and found[1] ~= token and rest > 0 then return rest end
redis.call('HSET', seen, 'token', token, 'until', now + ms)
redis.call('EXPIRE', seen, kept_seconds)
return 0
