-- `read(value)`: a tool as it is stored, nil for none, `unreadable` where it is none of ours.
-- `mark_of(spec)`: the mark of a rollback before a specification, '' for none. `marked(spec, version)`: with that mark.

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
