-- Opens a stream for lease_ms, unless as many are open as may be. Returns 1, or 0.
-- keys: streams
-- args: lease_ms, most, id
-- include: live_streams

if redis.call('ZCARD', streams) >= tonumber(most) then return 0 end
redis.call('ZADD', streams, latest, id)
redis.call('PEXPIRE', streams, lease_ms)
return 1
