-- Says that a reader is still at it.
-- keys: stream
-- args: group, consumer, entry_id

local found = redis.pcall('XPENDING', stream, group, entry_id, entry_id, 1, consumer)
if found.err or #found == 0 then return 0 end
redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'JUSTID')
return 1
