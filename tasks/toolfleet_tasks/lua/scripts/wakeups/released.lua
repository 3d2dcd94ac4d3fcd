-- It was claimed and not tried.
-- keys: wake, due, clock_key
-- args: id, token
-- include: wakeups/now

if redis.call('HGET', wake, 'token') ~= token then return 0 end
redis.call('HDEL', wake, 'token')
redis.call('HINCRBY', wake, 'tries', -1)
return redis.call('ZADD', due, now, id)
