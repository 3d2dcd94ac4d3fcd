-- Asks for the time.
-- shown: what a worker's clock shows, '' if it shows nothing that counts. note: a worker's, '' for none.
-- keys: clock_key, notes_key
-- args: shown, note
-- include: clock/fleet_time
-- constants: LONGEST_BRIDGE_SECONDS, WORKER_COUNTS_SECONDS

local KEPT_MS = 86400000
local fleet, server, since = fleet_time(clock_key)
local reached = tonumber(redis.call('HGET', clock_key, 'reached') or 0) or 0
if reached > fleet + 2000000 * LONGEST_BRIDGE_SECONDS then reached = 0 end -- before the clock was set by years, say
local notes = {}
-- What cannot be noted in a Redis that is full, or a replica, need not be.
if shown ~= '' then
  redis.pcall('HSET', clock_key, 'reached', string.format('%.0f', math.max(reached, tonumber(shown))))
  if redis.call('PTTL', clock_key) < KEPT_MS / 2 then redis.pcall('PEXPIRE', clock_key, KEPT_MS) end
end
if note ~= '' then
  redis.pcall('ZREMRANGEBYSCORE', notes_key, '-inf', server - WORKER_COUNTS_SECONDS * 1000000)
  redis.pcall('ZADD', notes_key, server, note)
  redis.pcall('EXPIRE', notes_key, WORKER_COUNTS_SECONDS)
  notes = redis.call('ZRANGE', notes_key, 0, -1)
end
return {string.format('%.0f', server), string.format('%.0f', fleet), string.format('%.0f', reached), since, notes}
