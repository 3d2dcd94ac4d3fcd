-- `read(value)`: a tool as it is stored, nil for none, `unreadable` where it is none of ours.
-- `mark_of(spec)`: the mark of a rollback before a specification, '' for none. `marked(spec, version)`: with that mark.
-- `earlier_of(name)`: a tool's earlier specifications, the latest first.
-- `write(name, before, after, kind)`: stores a tool, or removes it if there is nothing `after`, and adds the events of that.
-- `kind`: how another specification is told of, if it has not changed by itself. `taken(after)`: what is answered then.
-- versions_kept: how many specifications of a tool, the one in force among them.
-- include: store/events

local function read(value)
  if not value then return nil end
  local enabled, digest, created, version, spec = string.match(value, '^([01])\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  if not enabled then return {unreadable = true} end
  return {enabled = enabled, digest = digest, created = created, version = version, spec = spec}
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
  for digest, created, version, spec in string.gmatch(redis.call('HGET', earlier, name) or '', lines) do
    entries[#entries + 1] = {digest = digest, created = created, version = version, spec = spec}
  end
  return entries
end

local function keep_earlier(name, before, after)
  if not (before and before.version and after) then
    redis.call('HDEL', earlier, name)
    return
  end
  if before.version == after.version and before.digest == after.digest then return end
  local entries = earlier_of(name)
  table.insert(entries, 1, before)
  local kept, seen = {}, {[after.version] = true}
  for _, each in ipairs(entries) do
    if not seen[each.version] and #kept < versions_kept - 1 then
      seen[each.version] = true
      kept[#kept + 1] = table.concat({each.digest, each.created, each.version, each.spec}, '\n') .. '\n'
    end
  end
  if #kept == 0 then redis.call('HDEL', earlier, name) else redis.call('HSET', earlier, name, table.concat(kept)) end
end

local function write(name, before, after, kind)
  changes = changes + 1
  keep_earlier(name, before, after)
  if not after then
    note('removed', name, '', '')
    redis.call('HDEL', tools, name)
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
  redis.call('HSET', tools, name, table.concat(lines, '\n'))
end

local function taken(after)
  return table.concat({'taken', after.enabled, after.created, mark_of(after.spec)}, '\n')
end
