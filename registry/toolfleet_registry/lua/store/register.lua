-- Registers tools.
-- keeps_enabled: '1' to leave a changed tool enabled or disabled, else '0'.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, keeps_enabled, specs(name, digest, version, text)...
-- include: store/write

local replies = {}
for _, spec in ipairs(specs) do
  local stored = redis.call('HGET', tools, spec.name)
  local before = read(stored)
  local after, said = before, 'taken'
  if before and before.unreadable then
    said = 'unreadable'
  elseif before and before.version == spec.version then
    if before.digest ~= spec.digest then said = 'drift' end
  elseif before and keeps_enabled == '1' and spec.version ~= 'null' and mark_of(before.spec) == spec.version then
    said = 'stays\n' .. stored
  else
    local enabled = keeps_enabled == '1' and before and before.enabled or '1'
    after = {enabled = enabled, digest = spec.digest, created = time[1], version = spec.version, spec = spec.text}
    write(spec.name, before, after)
  end
  replies[#replies + 1] = said == 'taken' and taken(after) or said
end
return done(replies)
