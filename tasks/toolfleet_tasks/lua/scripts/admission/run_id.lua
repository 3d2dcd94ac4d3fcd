-- `run_id()`: which server this is, `-` where it does not say so.

-- Another server than the one that answers now may have had a record that this one has not.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '-'
end
