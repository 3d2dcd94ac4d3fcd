"""What all changes of a registry in Redis have in common: the rules of `rules.py`, in Lua, and how things are stored.

KEYS: the tools, the events, the revision, the pins, the earlier versions. ARGV[1]: how many events are kept.

The tools are a hash, name -> five lines: `1` if enabled or `0`, digest, when it was registered (JSON; a number is seconds
since the epoch), version (JSON), specification (JSON). JSON text has no line feeds, and none of it is read in here but for
the mark of a rollback before it (`rules.marked`). The earlier versions are a hash, name -> the last four of these lines for
each specification, the latest first; of tools that only ever had one, it has nothing.
The pins are a hash, `["module","tool"]` -> digest, and `["module"]` -> nothing: pinned, if only to no digest at all.
The revision is a hash: `epoch` (ms: the first change), `revision`, `events`: how many there were of each; and
`identity`.
"""

from toolfleet_registry.store.port import VERSIONS_KEPT

CHANGES = r"""
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

local function mark_of(spec) return string.match(spec, '^{"rolled_back_from":([^\t]*),\t') or '' end

local function marked(spec, version)
  local bare = string.gsub(spec, '^{"rolled_back_from":[^\t]*,\t', '{', 1)
  if version == '' then return bare end
  return '{"rolled_back_from":' .. version .. ',\t' .. string.sub(bare, 2)
end

local function earlier_of(name)
  local entries = {}
  local lines = '([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n'
  for digest, created, version, spec in string.gmatch(redis.call('HGET', KEYS[5], name) or '', lines) do
    entries[#entries + 1] = {digest = digest, created = created, version = version, spec = spec}
  end
  return entries
end

local function keep_earlier(name, before, after)
  if not (before and before.version and after) then
    redis.call('HDEL', KEYS[5], name)
    return
  end
  if before.version == after.version and before.digest == after.digest then return end
  local entries = earlier_of(name)
  table.insert(entries, 1, before)
  local kept, seen = {}, {[after.version] = true}
  for _, each in ipairs(entries) do
    if not seen[each.version] and #kept < EARLIER_KEPT then
      seen[each.version] = true
      kept[#kept + 1] = table.concat({each.digest, each.created, each.version, each.spec}, '\n') .. '\n'
    end
  end
  if #kept == 0 then redis.call('HDEL', KEYS[5], name) else redis.call('HSET', KEYS[5], name, table.concat(kept)) end
end

-- `kind`: how another specification is told of, if it has not changed by itself.
local function write(name, before, after, kind)
  changes = changes + 1
  keep_earlier(name, before, after)
  if not after then
    note('removed', name, '', '')
    redis.call('HDEL', KEYS[1], name)
    return
  end
  if not before then
    note('registered', name, after.version, after.digest)
  elseif before.version ~= after.version or before.digest ~= after.digest then
    note(kind or 'changed', name, after.version, after.digest)
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

local function taken(after)
  return table.concat({'taken', after.enabled, after.created, mark_of(after.spec)}, '\n')
end

local function done(reply)
  if changes > 0 then
    redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[1])
    epoch_of_events()
    redis.call('HINCRBY', KEYS[3], 'revision', 1)
  end
  return reply
end
""".replace("EARLIER_KEPT", str(VERSIONS_KEPT - 1))
"""What stands before the scripts that change something."""
