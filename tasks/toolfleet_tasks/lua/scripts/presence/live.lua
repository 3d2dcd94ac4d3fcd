-- The notes of a lane's workers that live.
-- seconds: for how long a note counts.
-- keys: slots
-- args: seconds

return redis.call('ZRANGEBYSCORE', slots, redis.call('TIME')[1] - seconds, '+inf')
