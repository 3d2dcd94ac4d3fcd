-- Says, once, under which handle, and in which of its processes, a module goes on with a call that was ended from
-- outside: nobody wants it any more.
-- keys: record
-- args: token

local found = redis.call('HMGET', record, 'state', 'accepted', 'recalled', 'replica')
if not found[2] or (found[3] and found[3] ~= token) then return {'none', '', ''} end
if found[1] ~= 'done' then return {'open', '', ''} end
redis.call('HSET', record, 'recalled', token)
return {'recalled', found[2], found[4] or ''}
