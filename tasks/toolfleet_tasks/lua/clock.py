"""What happens at once inside Redis with the fleet's clock.

The fleet's time is the server's, unless the server's clock was set while somebody watched: then it goes on as before, and
comes back to the server's by and by. Both times are in microseconds. The clock is a hash: `offset`: of the fleet's time from
the server's, as it was at `since`, by the server's clock; `reached`: the latest time that the clock of any worker has shown.
Beside it stands how far each worker's own machine is off: `<worker> <s>`, by when it said so.
"""

from toolfleet_registry.time.slewed_clock import LONGEST_BRIDGE_SECONDS, RETURN_RATE

WORKER_COUNTS_SECONDS = 20
"""A worker that has said nothing for so long has died."""
_KEPT_MS = 86_400_000

FLEET_TIME = f"""
local function fleet_time(key)
  local clock = redis.call('TIME')
  local server = clock[1] * 1000000 + clock[2]
  local found = redis.call('HMGET', key, 'offset', 'since')
  local offset, since = tonumber(found[1] or 0) or 0, tonumber(found[2] or 0) or 0
  local rest = math.max(math.abs(offset) - {RETURN_RATE} * math.max(server - since, 0), 0)
  return server + (offset < 0 and -rest or rest), server, found[2] or ''
end
"""
"""`fleet_time(key)`: the fleet's time, the server's, and `since`. Defines nothing else, to stand before a script that calls it."""

LOOK = (
    FLEET_TIME
    + f"""
local fleet, server, since = fleet_time(KEYS[1])
local reached = tonumber(redis.call('HGET', KEYS[1], 'reached') or 0) or 0
if reached > fleet + {LONGEST_BRIDGE_SECONDS * 2e6:.0f} then reached = 0 end -- before the clock was set by years, say
local notes = {{}}
-- What cannot be noted in a Redis that is full, or a replica, need not be.
if ARGV[1] ~= '' then
  redis.pcall('HSET', KEYS[1], 'reached', string.format('%.0f', math.max(reached, tonumber(ARGV[1]))))
  if redis.call('PTTL', KEYS[1]) < {_KEPT_MS // 2} then redis.pcall('PEXPIRE', KEYS[1], {_KEPT_MS}) end
end
if ARGV[2] ~= '' then
  redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', server - {WORKER_COUNTS_SECONDS}000000)
  redis.pcall('ZADD', KEYS[2], server, ARGV[2])
  redis.pcall('EXPIRE', KEYS[2], {WORKER_COUNTS_SECONDS})
  notes = redis.call('ZRANGE', KEYS[2], 0, -1)
end
return {{string.format('%.0f', server), string.format('%.0f', fleet), string.format('%.0f', reached),
  since, notes}}
"""
)
"""Ask for the time. KEYS: the clock, the workers' notes. ARGV: what a worker's clock shows (''; it shows nothing that counts),
a worker's note ('': none).

Returns the server's time, the fleet's, the latest that any worker's clock had shown before, `since`, and all notes.
"""

BRIDGE = f"""
if (redis.call('HGET', KEYS[1], 'since') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'offset', ARGV[2], 'since', ARGV[3], 'reached', ARGV[4])
redis.call('PEXPIRE', KEYS[1], math.ceil(math.abs(ARGV[2]) / {RETURN_RATE * 1000}) + {_KEPT_MS})
return 1
"""
"""Have the fleet's time go on after the server's clock was set. KEYS: the clock. ARGV: `since` as it was looked at, the offset from
now on, the server's time when it was looked at, and the fleet's time then.

Nothing in it depends on when it runs: Redis may freeze before. Returns 0 if others have done it meanwhile.
"""
