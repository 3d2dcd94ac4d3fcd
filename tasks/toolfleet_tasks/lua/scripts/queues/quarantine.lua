-- Takes a message that nobody can run out of the way. Refused, with nothing changed, if `messages` is no list.
-- kept: what to keep of the message. most: how many to keep.
-- keys: unacked, unacked_index, messages, counter
-- args: tag, kept, most

-- Stored before it is removed: a script that fails is not undone. A counter that cannot count keeps nobody's message.
redis.call('LPUSH', messages, kept)
redis.call('LTRIM', messages, 0, most - 1)
local count = redis.pcall('INCR', counter)
redis.call('ZREM', unacked_index, tag)
redis.call('HDEL', unacked, tag)
return type(count) == 'number' and count or 0
