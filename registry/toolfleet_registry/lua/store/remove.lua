-- Removes a tool.
-- spares_disabled: '1' to leave it alone unless it surely is enabled, else '0'.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, name, spares_disabled
-- include: store/write

local before = read(redis.call('HGET', tools, name))
if before and (spares_disabled == '0' or (not before.unreadable and before.enabled == '1')) then write(name, before, nil) end
return done(1)
