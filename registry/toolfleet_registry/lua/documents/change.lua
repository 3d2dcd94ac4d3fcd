-- Replaces the texts of a document if its history is as expected. Returns 'done', 'changed' or 'full'.
-- histories: the entries themselves, where documents have no history. used: the histories, where use is not noted.
-- expected, history, entry: '' for none. new: the revision from then on, '' if it stays.
-- keys: entries, histories, used, revision, announced
-- args: channel, most, new, name, expected, history, entry
-- include: documents/revised

local there = redis.call('HGET', histories, name) or ''
if there ~= expected then return 'changed' end
if there == '' and history ~= '' and redis.call('HLEN', histories) >= tonumber(most) then return 'full' end
if history == '' then redis.call('HDEL', used, name) end
for _, each in ipairs({{histories, history}, {entries, entry}}) do
  if each[2] == '' then redis.call('HDEL', each[1], name) else redis.call('HSET', each[1], name, each[2]) end
end
if new ~= '' then revised(new) end
return 'done'
