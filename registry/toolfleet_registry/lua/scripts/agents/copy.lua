-- Has the copy of agents' profiles say what the registry does, if it still has the revision that was read.
-- Returns 1 if it has happened.
-- expected: '' for a copy that is not there. new: the registry's revision.
-- keys: entries, revision, manifests
-- args: channel, expected, new, texts(name, entry)...
-- include: agents/changed

if (redis.call('GET', revision) or '') ~= expected then return 0 end
redis.call('DEL', entries)
for _, each in ipairs(texts) do redis.call('HSET', entries, each.name, each.entry) end
changed(new)
return 1
