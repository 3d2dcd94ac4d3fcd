-- Has a state hold for a queue or a lane from now on, or none. One that holds already stays as it is, with its time and reason.
-- state: `paused` or `draining`, '' for none; text: what is stored of it.
-- keys: states
-- args: name, state, text

local before = redis.call('HGET', states, name) or ''
local held = string.match(before, '"state":"(%a+)"') or ''
if before ~= '' and held == state then return {0, before} end
if state == '' then return {redis.call('HDEL', states, name), before} end
redis.call('HSET', states, name, text)
return {1, before}
