-- Returns what is watched now.
-- keys: watched
-- include: directory/redis_time

return redis.call('ZRANGEBYSCORE', watched, '(' .. now_ms, '+inf')
