-- `earlier_of(name)`: a tool's earlier specifications, the latest first.

local function earlier_of(name)
  local entries = {}
  local lines = '([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n'
  for digest, created, version, spec in string.gmatch(redis.call('HGET', earlier, name) or '', lines) do
    entries[#entries + 1] = {digest = digest, created = created, version = version, spec = spec}
  end
  return entries
end
