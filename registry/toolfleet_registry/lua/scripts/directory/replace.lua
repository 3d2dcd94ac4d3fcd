-- Stores a module's entry, or removes it, if what is stored now is what was expected.
-- expected: what must be there. entry: what is to be. '' for nothing.
-- keys: directory, revision
-- args: channel, module, expected, entry
-- include: directory/changed

local there = redis.call('HGET', directory, module) or ''
if there ~= expected then return 0 end
if entry == '' then redis.call('HDEL', directory, module) else redis.call('HSET', directory, module, entry) end
changed(module)
return 1
