-- Says that a stream is open for lease_ms from now on; also one whose lease has run out, for it is open.
-- keys: streams
-- args: lease_ms, id
-- include: live_streams

redis.call('ZADD', streams, latest, id)
redis.call('PEXPIRE', streams, lease_ms)
