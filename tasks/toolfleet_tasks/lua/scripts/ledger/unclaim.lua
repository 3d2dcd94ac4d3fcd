-- Gives a claim back of which nothing was made: nothing was sent.
-- keys: record, running, breaker
-- args: token, call_id
-- include: breaker/note

if redis.call('HGET', record, 'token') ~= token then return 0 end
if redis.call('HGET', record, 'as') ~= 'go' then -- an earlier attempt is still open, and must stay so
  redis.call('HSET', record, 'lease', 0)
  return 1
end
redis.call('HINCRBY', record, 'begun', -1)
redis.call('HDEL', record, 'token', 'lease', 'as')
if running ~= record then redis.call('ZREM', running, call_id) end
breaker_spare(breaker)
return 1
