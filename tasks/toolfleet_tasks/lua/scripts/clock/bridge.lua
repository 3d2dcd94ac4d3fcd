-- Has the fleet's time go on after the server's clock was set. Nothing in it depends on when it runs: Redis may freeze before.
-- since: as it was looked at. offset: from now on. server_time, fleet_time: when it was looked at.
-- keys: clock_key
-- args: since, offset, server_time, fleet_time
-- constants: RETURN_RATE

local KEPT_MS = 86400000
if (redis.call('HGET', clock_key, 'since') or '') ~= since then return 0 end
redis.call('HSET', clock_key, 'offset', offset, 'since', server_time, 'reached', fleet_time)
redis.call('PEXPIRE', clock_key, math.ceil(math.abs(offset) / (RETURN_RATE * 1000)) + KEPT_MS)
return 1
