-- Keeps an agent's profile and its versions, if the versions are as expected. Returns 'done', 'changed' or 'full'.
-- expected, history: '' for nothing. entry: the one in force, '' for none. new: the revision from then on.
-- keys: entries, histories, revision, manifests
-- args: channel, most, new, name, expected, history, entry
-- include: agents/changed

local there = redis.call('HGET', histories, name) or ''
if there ~= expected then return 'changed' end
if there == '' and history ~= '' and redis.call('HLEN', histories) >= tonumber(most) then return 'full' end
if history == '' then redis.call('HDEL', histories, name) else redis.call('HSET', histories, name, history) end
if entry == '' then redis.call('HDEL', entries, name) else redis.call('HSET', entries, name, entry) end
changed(new)
return 'done'
