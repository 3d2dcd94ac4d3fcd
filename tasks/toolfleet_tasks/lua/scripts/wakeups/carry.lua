-- Puts an entry that an older process has written for all users of a conversation into its user's stream.
-- keys: old, stream
-- args: entry_id, seconds
-- include: wakeups/put

local found = redis.call('XRANGE', old, entry_id, entry_id)[1]
if not found then return 0 end
local fields = {}
for i = 1, #found[2], 2 do fields[found[2][i]] = found[2][i + 1] end
redis.call('XDEL', old, entry_id)
completion_put(stream, fields.id or '', fields.body, tonumber(seconds))
return 1
