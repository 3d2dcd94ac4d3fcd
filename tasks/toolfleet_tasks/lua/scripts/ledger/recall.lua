-- Says, once, under which handle a module goes on with a call that was ended from outside: nobody wants it any more.
-- keys: record

local found = redis.call('HMGET', record, 'state', 'accepted', 'recalled')
if not found[2] or found[3] then return {'none', ''} end
if found[1] ~= 'done' then return {'open', ''} end
redis.call('HSET', record, 'recalled', 1)
return {'recalled', found[2]}
