-- Registers a tool in the place of the specification that is expected to be there.
-- expected: its digest, '' for none.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, expected, name, digest, version, text
-- include: store/write

local before = read(redis.call('HGET', tools, name))
if before and before.unreadable then return 'unreadable' end
if (before and before.digest or '') ~= expected then return 'unexpected' end
local after = before
if not before or before.version ~= version or before.digest ~= digest then
  local enabled = before and before.enabled or '1'
  after = {enabled = enabled, digest = digest, created = time[1], version = version, spec = text}
  write(name, before, after)
end
return done(taken(after))
