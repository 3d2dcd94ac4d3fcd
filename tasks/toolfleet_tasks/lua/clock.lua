-- The clock of the fleet.
-- The fleet's time is the server's, unless the server's clock was set while a worker watched: then it goes on as before, and
-- returns to the server's gradually. Both times are in microseconds. The clock is a hash: `offset`: of the fleet's time from
-- the server's, as it was at `since`, by the server's clock; `reached`: the latest time that the clock of any worker has shown.
-- A second key has the lead of each worker's own machine: `<worker> <s>`, by when it said so.
-- `now`: the server's time in ms.
-- `fleet_time(key)`: the fleet's time, the server's (both in microseconds), and `since`.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local KEPT_MS = 86400000

local function fleet_time(key)
  local clock = redis.call('TIME')
  local server = clock[1] * 1000000 + clock[2]
  local found = redis.call('HMGET', key, 'offset', 'since')
  local offset, since = tonumber(found[1] or 0) or 0, tonumber(found[2] or 0) or 0
  local rest = math.max(math.abs(offset) - RETURN_RATE * math.max(server - since, 0), 0)
  return server + (offset < 0 and -rest or rest), server, found[2] or ''
end

-- script: read(clock_key, notes_key; shown, note)
-- Asks for the time.
-- shown: what a worker's clock shows, '' if it shows nothing that counts. note: a worker's, '' for none.
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

-- script: bridge(clock_key; since, offset, server_time, fleet_time)
-- Has the fleet's time go on after the server's clock was set. Nothing in it depends on when it runs: Redis may freeze before.
-- since: as it was looked at. offset: from now on. server_time, fleet_time: when it was looked at.
if (redis.call('HGET', clock_key, 'since') or '') ~= since then return 0 end
redis.call('HSET', clock_key, 'offset', offset, 'since', server_time, 'reached', fleet_time)
redis.call('PEXPIRE', clock_key, math.ceil(math.abs(offset) / (RETURN_RATE * 1000)) + KEPT_MS)
return 1
