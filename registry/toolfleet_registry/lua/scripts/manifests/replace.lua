-- Stores other verdicts on a manifest, if that is the one that was loaded, and announces it.
-- expected: the mark of what was loaded.
-- keys: manifest, revision
-- args: expected, value, channel, module

local there = redis.call('GET', manifest)
if not there or redis.sha1hex(there) ~= expected then return 0 end
redis.call('SET', manifest, value, 'KEEPTTL')
redis.call('INCR', revision)
redis.call('PUBLISH', channel, module)
return 1
