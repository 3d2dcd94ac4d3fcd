-- What a call asks, and whether it waits for that, or was answered and is to be sent over another broker.
-- keys: record

local found = redis.call('HMGET', record, 'state', 'token', 'question', 'message')
if found[1] == 'done' or not found[3] then return {'', '', 0} end
return {found[3], found[4], found[2] == 'asked' and 1 or 0}
