-- The manifest of a module, as it was fetched, with the verdicts of operators on its tools.

-- script: save(manifest; expected, value, seconds)
-- Stores a manifest, if what is there is what was loaded: an operator's word or a later look may have been stored meanwhile.
-- expected: the mark of what was loaded, '' if nothing was there, '*' for whatever is.
local there = redis.call('GET', manifest) or ''
if expected ~= '*' and (there == '' and '' or redis.sha1hex(there)) ~= expected then return {0, ''} end
redis.call('SET', manifest, value, 'EX', seconds)
return {1, there}

-- script: replace(manifest, revision; expected, value, channel, module)
-- Stores other verdicts on a manifest, if that is the one that was loaded, and announces it.
-- expected: the mark of what was loaded.
local there = redis.call('GET', manifest)
if not there or redis.sha1hex(there) ~= expected then return 0 end
redis.call('SET', manifest, value, 'KEEPTTL')
redis.call('INCR', revision)
redis.call('PUBLISH', channel, module)
return 1
