"""How a call's audit line gets into its stream inside Redis: with what ends the call, at once or not at all."""

AUDIT = """
-- A line that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function audit(key, kept, line)
  return type(redis.pcall('XADD', key, 'MAXLEN', '~', kept, '*', 'line', line)) ~= 'table'
end
"""
"""`audit(key, kept, line)`: add a line to the stream, which keeps about so many. False if that did not work."""
