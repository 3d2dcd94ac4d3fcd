"""What an operator's look at a fleet asks Redis in scripts: bounded, however many queues there are and whatever lies in them."""

from toolfleet_tasks.lua.breaker import BREAKER_REST
from toolfleet_tasks.lua.clock import FLEET_TIME

NOW = f"{FLEET_TIME} return string.format('%.0f', (fleet_time(KEYS[1])))"
"""The fleet's time in microseconds. KEYS: the clock."""

QUEUES = """
local found, looks = {}, tonumber(ARGV[2])
for i, queue in ipairs(KEYS) do
  local length = redis.pcall('LLEN', queue)
  if type(length) == 'number' and length > 0 then
    local oldest = ''
    for at = 1, math.min(length, 3) do
      if looks == 0 then break end
      looks = looks - 1
      local message = redis.call('LINDEX', queue, -at)
      if #message <= tonumber(ARGV[1]) then
        oldest = message
        break
      end
    end
    found[#found + 1] = {i, length, oldest}
  end
end
return found
"""
"""The queues that hold something: their number among KEYS, their length, and their oldest message, '' if that is not known.

ARGV: the bytes of the largest message that is brought (one behind it is taken instead, which is hardly younger), and how many
messages are looked at. They are taken from the end of the list.
"""

BREAKERS = (
    BREAKER_REST
    + """
local clock, found = redis.call('TIME'), {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i, key in ipairs(KEYS) do
  local kind, rest, _, failures = breaker_state(key, now)
  if kind ~= 'closed' or (failures and failures ~= '0') then found[#found + 1] = {i, kind, rest, failures or '0'} end
end
return found
"""
)
"""The breakers that have seen failures: their number among KEYS, what they are, for how many ms, and the failures in a row."""
