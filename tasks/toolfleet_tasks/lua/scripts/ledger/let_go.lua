-- Ends a lease at once: nobody is at the call any more, and nobody knows how far it got.
-- keys: record, running
-- args: token, call_id

local holder = redis.call('HGET', record, 'token')
if holder == token then redis.call('HSET', record, 'lease', 0) end
if running ~= record and (not holder or holder == token) then redis.call('ZREM', running, call_id) end
return 1
