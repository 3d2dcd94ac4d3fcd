-- Makes the registry what a snapshot says: tools and pins that are not in it go. Takes about 20 us a tool, in which Redis does
-- nothing else.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, versions_kept, kept(name, digest, version, spec, enabled, created)..., fields(name, digest)...
-- include: store/write, store/write_pins

local wanted, names = {}, {}
for _, tool in ipairs(kept) do
  wanted[tool.name] = tool
  names[#names + 1] = tool.name
end
for _, name in ipairs(redis.call('HKEYS', tools)) do
  if not wanted[name] then names[#names + 1] = name end
end
table.sort(names)
for _, name in ipairs(names) do
  local before, after = read(redis.call('HGET', tools, name)), wanted[name]
  local differs = not (before and after)
  for _, field in ipairs({'enabled', 'digest', 'created', 'version'}) do
    differs = differs or before[field] ~= after[field]
  end
  differs = differs or mark_of(before.spec or '') ~= mark_of(after.spec)
  if differs then write(name, before, after) end
end
local wanted_pins = {}
for _, field in ipairs(fields) do wanted_pins[field.name] = field.digest end
write_pins(wanted_pins, '')
return done(1)
