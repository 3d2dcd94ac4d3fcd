"""What happens at once inside Redis when a registry is changed or read, in Lua; `redis_changes.py` says what is stored, and under which keys."""

from toolfleet_registry.store.redis_changes import CHANGES

KNOWN = r"""
local heads = {}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  local head = value and string.match(value, '^[01]\n[^\n]*\n[^\n]*\n[^\n]*\n') or ''
  heads[i] = head .. (value and string.match(value, '^{"rolled_back_from":([^\t]*),\t', #head + 1) or '')
end
return heads
"""
"""What is stored of tools; of their specifications, only the mark of a rollback. KEYS: the tools. ARGV: at most 1,000 names."""

VERSIONS = "return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[5], ARGV[1])}"
"""What is stored of a tool, and what of its earlier specifications, at one moment. ARGV[1]: its name."""

SNAPSHOT = "return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[4])}"
"""Tools and pins, as they are at one moment."""

MANIFEST_DIGESTS = """
local digests = {}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do digests[i] = value and string.sub(value, 1, 64) or '' end
return digests
"""
"""Which manifests are kept, without their text. KEYS: these (a hash, module -> 64 digits, a line feed, the text). ARGV: at most
1,000 modules.
"""

KEEP_MODULES = """
redis.call('DEL', KEYS[1])
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
"""
"""KEYS: the copy of the directory (a hash). ARGV: each module, and its entry."""

IDENTITY = """
redis.call('HSETNX', KEYS[3], 'identity', ARGV[1])
return redis.call('HGET', KEYS[3], 'identity')
"""
"""ARGV[1]: the registry's identity, unless it has one. Returns which it has."""

REGISTER = (
    CHANGES
    + r"""
local replies = {}
for i = 3, #ARGV, 4 do
  local name, digest, version, spec = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local before = read(redis.call('HGET', KEYS[1], name))
  local after, said = before, 'taken'
  if before and before.unreadable then
    said = 'unreadable'
  elseif before and before.version == version then
    if before.digest ~= digest then said = 'drift' end
  elseif before and ARGV[2] == '1' and version ~= 'null' and mark_of(before.spec) == version then
    said = 'stays\n' .. redis.call('HGET', KEYS[1], name)
  else
    local enabled = ARGV[2] == '1' and before and before.enabled or '1'
    after = {enabled = enabled, digest = digest, created = time[1], version = version, spec = spec}
    write(name, before, after)
  end
  replies[#replies + 1] = said == 'taken' and taken(after) or said
end
return done(replies)
"""
)
"""ARGV[2]: '1' to leave a changed tool enabled or disabled; then, for each tool: name, digest, version, specification.

Returns for each: `drift`, `unreadable`; or four lines: `taken`, whether it is enabled, when it was registered, the mark of its
rollback; or, of one that was rolled back from this version, `stays` and all that is stored.
"""

REPLACE = (
    CHANGES
    + r"""
local name, digest, version, spec = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local before = read(redis.call('HGET', KEYS[1], name))
if before and before.unreadable then return 'unreadable' end
if (before and before.digest or '') ~= ARGV[2] then return 'unexpected' end
local after = before
if not before or before.version ~= version or before.digest ~= digest then
  local enabled = before and before.enabled or '1'
  after = {enabled = enabled, digest = digest, created = time[1], version = version, spec = spec}
  write(name, before, after)
end
return done(taken(after))
"""
)
"""ARGV[2]: the digest that is to be replaced, or ''; then name, digest, version, specification. Returns as REGISTER, or `unexpected`."""

SWITCH = (
    CHANGES
    + r"""
local before = read(redis.call('HGET', KEYS[1], ARGV[2]))
if not before then return false end
if before.unreadable then return 'unreadable' end
if before.enabled ~= ARGV[3] then
  local after = {enabled = ARGV[3], digest = before.digest, created = before.created}
  after.version, after.spec = before.version, before.spec
  write(ARGV[2], before, after)
end
return done(redis.call('HGET', KEYS[1], ARGV[2]))
"""
)
"""ARGV[2]: name; ARGV[3]: '1' to enable, '0' to disable. Returns what is stored then, `unreadable`, or nothing if there is no such tool."""

ROLLBACK = (
    CHANGES
    + r"""
local name, version = ARGV[2], ARGV[3]
local before = read(redis.call('HGET', KEYS[1], name))
if not before then return false end
if before.unreadable then return redis.call('HGET', KEYS[1], name) end
if before.version == version then return redis.call('HGET', KEYS[1], name) end
local entry
for _, each in ipairs(earlier_of(name)) do
  if each.version == version then entry = each end
end
if not entry or ARGV[4] == '0' then return 'unknown' end
local first = mark_of(before.spec)
if first == '' then first = before.version end
if first == version or first == 'null' then first = '' end
local after = {enabled = before.enabled, digest = entry.digest, created = time[1], version = version}
after.spec = marked(entry.spec, first)
write(name, before, after, 'rolled_back')
return done(redis.call('HGET', KEYS[1], name))
"""
)
"""ARGV[2]: name; ARGV[3]: version; ARGV[4]: '0' if what is kept of it cannot be read. Returns what is stored then, `unknown`, or
nothing if there is no such tool.
"""

NOTE = (
    CHANGES
    + r"""
for i = 2, #ARGV, 4 do note(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[1])
return 1
"""
)
"""For each finding: kind, tool, version, digest. No change: the revision stays."""

REMOVE = (
    CHANGES
    + r"""
local before = read(redis.call('HGET', KEYS[1], ARGV[2]))
if before and (ARGV[3] == '0' or (not before.unreadable and before.enabled == '1')) then write(ARGV[2], before, nil) end
return done(1)
"""
)
"""ARGV[2]: name; ARGV[3]: '1' to leave it alone unless it surely is enabled, else '0'."""

PIN = (
    CHANGES
    + r"""
local wanted = {}
for i = 3, #ARGV, 2 do wanted[ARGV[i]] = ARGV[i + 1] end
write_pins(wanted, ARGV[2])
return done(1)
"""
)
"""ARGV[2]: the module's own field; then every field that it is to have, and its value."""

APPROVE = (
    CHANGES
    + r"""
if redis.call('HEXISTS', KEYS[4], ARGV[2]) == 0 then return 0 end
if redis.call('HGET', KEYS[4], ARGV[3]) ~= ARGV[4] then
  redis.call('HSET', KEYS[4], ARGV[3], ARGV[4])
  changes = 1
end
return done(1)
"""
)
"""ARGV[2]: the module's own field, ARGV[3]: the tool's, ARGV[4]: the digest. Returns 0 if the module is not pinned."""

RESTORE = (
    CHANGES
    + r"""
local wanted, tools, last = {}, {}, 2 + 6 * ARGV[2]
for i = 3, last, 6 do
  wanted[ARGV[i]] = {digest = ARGV[i + 1], version = ARGV[i + 2], spec = ARGV[i + 3], enabled = ARGV[i + 4], created = ARGV[i + 5]}
  tools[#tools + 1] = ARGV[i]
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not wanted[name] then tools[#tools + 1] = name end
end
table.sort(tools)
for _, name in ipairs(tools) do
  local before, after = read(redis.call('HGET', KEYS[1], name)), wanted[name]
  local differs = not (before and after)
  for _, field in ipairs({'enabled', 'digest', 'created', 'version'}) do
    differs = differs or before[field] ~= after[field]
  end
  differs = differs or mark_of(before.spec or '') ~= mark_of(after.spec)
  if differs then write(name, before, after) end
end
local pins = {}
for i = last + 1, #ARGV, 2 do pins[ARGV[i]] = ARGV[i + 1] end
write_pins(pins, '')
return done(1)
"""
)
"""ARGV[2]: how many tools; for each: name, digest, version, specification, enabled, registered; then every pin, field and value.

Takes about 20 us a tool, in which Redis does nothing else.
"""
