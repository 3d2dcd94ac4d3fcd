-- Adds an event for each finding. No change: the revision stays.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, findings(kind, tool, version, digest)...
-- include: store/events

for _, found in ipairs(findings) do note(found.kind, found.tool, found.version, found.digest) end
redis.call('XTRIM', events, 'MAXLEN', events_kept)
return 1
