-- Enables or disables a tool.
-- enabled: '1' or '0'.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, name, enabled
-- include: store/write

local before = read(redis.call('HGET', tools, name))
if not before then return false end
if before.unreadable then return 'unreadable' end
if before.enabled ~= enabled then
  local after = {enabled = enabled, digest = before.digest, created = before.created}
  after.version, after.spec = before.version, before.spec
  write(name, before, after)
end
return done(redis.call('HGET', tools, name))
