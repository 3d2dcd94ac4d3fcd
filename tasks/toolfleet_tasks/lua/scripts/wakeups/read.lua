-- An entry was read.
-- keys: stream
-- args: group, entry_id

redis.pcall('XACK', stream, group, entry_id)
return redis.pcall('XDEL', stream, entry_id)
