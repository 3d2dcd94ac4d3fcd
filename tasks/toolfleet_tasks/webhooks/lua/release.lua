-- Forgets a claim, unless the wake-up was acted on.
-- keys: seen
-- args: token

local found = redis.call('HMGET', seen, 'token', 'done')
if found[1] == token and not found[2] then return redis.call('DEL', seen) end
return 0
