-- Claims a wake-up for `lease_ms`, marks it as acted on, or forgets it, if what is there is what was seen.
-- token: what must be there, '' for nothing. new: what is there then, '' to forget it.
-- keys: seen
-- args: token, new, is_done, lease_ms, kept_seconds

if (redis.call('HGET', seen, 'token') or '') ~= token then return 0 end
if new == '' then return redis.call('DEL', seen) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', seen, 'token', new, 'until', string.format('%.0f', now + lease_ms))
if is_done == '1' then redis.call('HSET', seen, 'done', 1) else redis.call('HDEL', seen, 'done') end
redis.call('EXPIRE', seen, kept_seconds)
return 1
