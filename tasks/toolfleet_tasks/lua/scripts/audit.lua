-- `audit(key, kept, line)`: adds a line to the stream, which keeps about so many. False if that did not work.

-- A line that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function audit(key, kept, line)
  return type(redis.pcall('XADD', key, 'MAXLEN', '~', kept, '*', 'line', line)) ~= 'table'
end
