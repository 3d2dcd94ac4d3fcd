-- Keeps an API key. Returns 1, or 0 if there is one of that id, or no place.
-- new: the revision from then on.
-- keys: keys, revision
-- args: most, new, id, entry

if redis.call('HLEN', keys) >= tonumber(most) or redis.call('HSETNX', keys, id, entry) == 0 then return 0 end
redis.call('SET', revision, new)
return 1
