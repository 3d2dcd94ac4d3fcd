-- An entry is nothing to read, and nobody is given it again.
-- keys: stream
-- args: group, entry_id

return redis.pcall('XACK', stream, group, entry_id)
