-- Keeps what a call was asked and what it answered, unless somebody else has the call, or its user's share is half full: no
-- call is refused for what is kept here alone. Counts it there. Answers 1 if it is kept.
-- token: of who ends the call, or has just done so.
-- most: bytes of the user's share. spent: bytes that each costs beside its text.
-- keys: record, contents, stored
-- args: token, call_id, text, seconds, most, spent
-- include: now, storage/stored

local found = redis.call('HMGET', record, 'state', 'by', 'token')
local holder = found[1] and found[2] or found[3]
if holder and holder ~= token then return 0 end
local bytes = #text + spent
if stored_bytes(stored, now) + bytes > most / 2 then return 0 end
redis.call('SET', contents, text, 'EX', seconds)
stored_add(stored, 'contents:' .. call_id, bytes, now, seconds * 1000)
return 1
