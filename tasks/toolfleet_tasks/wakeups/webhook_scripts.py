"""What happens at once inside Redis with the registry's events on their way into the outbox of webhooks.

Up to where each receiver was told stands in a hash, receiver -> id of an event, and moves together with what is put into the
outbox. So whoever dies has done both or neither, and of two that read the same events one does.
"""

from toolfleet_tasks.lua.clock import FLEET_TIME
from toolfleet_tasks.wakeups.scripts import WAKES

MOST_WAITING = 1_000
"""Events that wait for one receiver: the others wait in the registry, which keeps 10,000."""

FEED = (
    FLEET_TIME
    + WAKES
    + f"""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 'moved' end
local count = (#ARGV - 4) / 2
if count > 0 and redis.call('ZCARD', KEYS[3]) + count > {MOST_WAITING} then return 'full' end
local now = math.floor(fleet_time(KEYS[#KEYS]) / 1000)
for i = 5, #ARGV, 2 do
  wake_put(ARGV[4] .. ARGV[i], KEYS[2], ARGV[i], now, 'registry', ARGV[i + 1])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 'fed'
"""
)
"""Put events into the outbox for one receiver. KEYS: the positions, the ids that are due of wake-ups, those of this receiver, the clock.
ARGV: receiver, the position after which they were read, the new one, what the hashes' names begin with; then of each: id, body.

Returns `fed`; `moved`: somebody else has fed meanwhile, or nobody has set a position; `full`: too many wait for this receiver.
"""
