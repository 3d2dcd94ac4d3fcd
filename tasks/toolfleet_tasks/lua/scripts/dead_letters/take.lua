-- Begins a replay, unless one runs.
-- seconds: after these it surely runs no more.
-- keys: dead
-- args: call_id, seconds

local letter = redis.call('HGET', dead, call_id)
if not letter then return false end
local now = tonumber(redis.call('TIME')[1])
local rest = tonumber(redis.call('HGET', dead, call_id .. '/replay') or 0) - now
if rest > 0 then return {letter, rest} end
redis.call('HSET', dead, call_id .. '/replay', now + seconds)
return {letter, 0}
