-- Forgets messages for good.
-- keys: unacked, unacked_index
-- args: tags...

redis.call('ZREM', unacked_index, unpack(tags))
return redis.call('HDEL', unacked, unpack(tags))
