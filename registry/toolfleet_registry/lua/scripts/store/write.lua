-- `write(name, before, after, kind)`: stores a tool, or removes it if there is nothing `after`, and adds the events of that.
-- `kind`: how another specification is told of, if it has not changed by itself. `taken(after)`: what is answered then.
-- versions_kept: how many specifications of a tool, today's among them.
-- include: store/values, store/done, store/earlier_of

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
