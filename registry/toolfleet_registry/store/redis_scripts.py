"""What happens at once inside Redis when a registry changes: the rules of `rules.py`, in Lua.

KEYS: the tools, the events, the revision, the pins. ARGV[1]: how many events are kept.

The tools are a hash, name -> five lines: `1` if enabled or `0`, digest, when it was registered (JSON; a number is seconds
since the epoch), version (JSON), specification (JSON). JSON text has no line feeds, and none of it is read in here.
The pins are a hash, `["module","tool"]` -> digest, and `["module"]` -> nothing: pinned, if only to no digest at all.
The revision is a hash: `epoch` (ms: the first change), `revision`, `events`: how many there were of each; and
`identity`.
"""

_CHANGES = r"""
local time = redis.call('TIME')
local changes = 0

local function read(value)
  if not value then return nil end
  local enabled, digest, created, version, spec = string.match(value, '^([01])\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  if not enabled then return {unreadable = true} end
  return {enabled = enabled, digest = digest, created = created, version = version, spec = spec}
end

local function epoch_of_events()
  local epoch = redis.call('HGET', KEYS[3], 'epoch')
  if epoch then return epoch end
  -- Later than whatever is left of an earlier registry, wherever the clock stands.
  epoch = time[1] .. string.sub('00000' .. time[2], -6, -4)
  local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  local least = last and tonumber(string.match(last[1], '^%d+')) + 1 or 0
  if tonumber(epoch) < least then epoch = string.format('%.0f', least) end
  redis.call('HSET', KEYS[3], 'epoch', epoch)
  return epoch
end

local function note(kind, name, version, digest)
  local id = epoch_of_events() .. '-' .. redis.call('HINCRBY', KEYS[3], 'events', 1)
  local at = time[1] .. '.' .. string.sub('00000' .. time[2], -6)
  redis.call('XADD', KEYS[2], id, 'kind', kind, 'tool', name, 'version', version, 'digest', digest, 'at', at)
end

local function write(name, before, after)
  changes = changes + 1
  if not after then
    note('removed', name, '', '')
    redis.call('HDEL', KEYS[1], name)
    return
  end
  if not before then
    note('registered', name, after.version, after.digest)
  elseif before.version ~= after.version or before.digest ~= after.digest then
    note('changed', name, after.version, after.digest)
  end
  if after.enabled ~= (before and before.enabled or '1') then
    note(after.enabled == '1' and 'enabled' or 'disabled', name, after.version, after.digest)
  end
  local lines = {after.enabled, after.digest, after.created, after.version, after.spec}
  redis.call('HSET', KEYS[1], name, table.concat(lines, '\n'))
end

-- `wanted`: field -> digest; what belongs to the module, or to any, and is not wanted, goes.
local function write_pins(wanted, marker)
  local found = redis.call('HGETALL', KEYS[4])
  local prefix = string.sub(marker, 1, -2) .. ','
  for i = 1, #found, 2 do
    local field = found[i]
    if wanted[field] == found[i + 1] then
      wanted[field] = nil
    elseif wanted[field] == nil and (marker == '' or field == marker or string.sub(field, 1, #prefix) == prefix) then
      redis.call('HDEL', KEYS[4], field)
      changes = changes + 1
    end
  end
  for field, digest in pairs(wanted) do
    redis.call('HSET', KEYS[4], field, digest)
    changes = changes + 1
  end
end

local function done(reply)
  if changes > 0 then
    redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[1])
    epoch_of_events()
    redis.call('HINCRBY', KEYS[3], 'revision', 1)
  end
  return reply
end
"""

KNOWN = """
local heads = {}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  heads[i] = value and string.match(value, '^[01]\\n[^\\n]*\\n[^\\n]*\\n[^\\n]*\\n') or ''
end
return heads
"""
"""What is stored of tools, without their specifications. KEYS: the tools. ARGV: at most 1,000 names."""

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
    _CHANGES
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
  else
    local enabled = ARGV[2] == '1' and before and before.enabled or '1'
    after = {enabled = enabled, digest = digest, created = time[1], version = version, spec = spec}
    write(name, before, after)
  end
  replies[#replies + 1] = said == 'taken' and 'taken\n' .. after.enabled .. '\n' .. after.created or said
end
return done(replies)
"""
)
"""ARGV[2]: '1' to leave a changed tool enabled or disabled; then, for each tool: name, digest, version, specification.

Returns for each: `drift`, `unreadable`, or three lines: `taken`, whether it is enabled, when it was registered.
"""

REPLACE = (
    _CHANGES
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
return done('taken\n' .. after.enabled .. '\n' .. after.created)
"""
)
"""ARGV[2]: the digest that is to be replaced, or ''; then name, digest, version, specification. Returns as REGISTER, or `unexpected`."""

SWITCH = (
    _CHANGES
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

REMOVE = (
    _CHANGES
    + r"""
local before = read(redis.call('HGET', KEYS[1], ARGV[2]))
if before and (ARGV[3] == '0' or (not before.unreadable and before.enabled == '1')) then write(ARGV[2], before, nil) end
return done(1)
"""
)
"""ARGV[2]: name; ARGV[3]: '1' to leave it alone unless it surely is enabled, else '0'."""

PIN = (
    _CHANGES
    + r"""
local wanted = {}
for i = 3, #ARGV, 2 do wanted[ARGV[i]] = ARGV[i + 1] end
write_pins(wanted, ARGV[2])
return done(1)
"""
)
"""ARGV[2]: the module's own field; then every field that it is to have, and its value."""

APPROVE = (
    _CHANGES
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
    _CHANGES
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
