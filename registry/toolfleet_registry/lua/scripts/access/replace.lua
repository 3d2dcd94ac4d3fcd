-- Keeps an API key in the place of what is expected there.
-- keys: keys
-- args: id, expected, entry

if redis.call('HGET', keys, id) == expected then redis.call('HSET', keys, id, entry) end
