-- Makes an earlier specification of a tool today's.
-- is_readable: '0' if what is kept of it cannot be read, else '1'.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, name, version, is_readable
-- include: store/write

local before = read(redis.call('HGET', tools, name))
if not before then return false end
if before.unreadable then return redis.call('HGET', tools, name) end
if before.version == version then return redis.call('HGET', tools, name) end
local entry
for _, each in ipairs(earlier_of(name)) do
  if each.version == version then entry = each end
end
if not entry or is_readable == '0' then return 'unknown' end
local first = mark_of(before.spec)
if first == '' then first = before.version end
if first == version or first == 'null' then first = '' end
local after = {enabled = before.enabled, digest = entry.digest, created = time[1], version = version}
after.spec = marked(entry.spec, first)
write(name, before, after, 'rolled_back')
return done(redis.call('HGET', tools, name))
