-- Replaces a copy of documents, if it still has the revision that was read. Returns 1 if it has happened.
-- expected: '' for a copy that is not there. new: the revision of the documents.
-- keys: entries, revision, announced
-- args: channel, expected, new, texts(name, entry)...
-- include: documents/revised

if (redis.call('GET', revision) or '') ~= expected then return 0 end
redis.call('DEL', entries)
for _, each in ipairs(texts) do redis.call('HSET', entries, each.name, each.entry) end
revised(new)
return 1
