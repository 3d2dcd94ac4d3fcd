-- Stores a manifest, if what is there is what was loaded: an operator's word or a later look may have been stored meanwhile.
-- expected: the mark of what was loaded, '' if nothing was there, '*' for whatever is.
-- keys: manifest
-- args: expected, value, seconds

local there = redis.call('GET', manifest) or ''
if expected ~= '*' and (there == '' and '' or redis.sha1hex(there)) ~= expected then return {0, ''} end
redis.call('SET', manifest, value, 'EX', seconds)
return {1, there}
