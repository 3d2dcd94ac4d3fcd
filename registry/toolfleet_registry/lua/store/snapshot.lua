-- Tells tools and pins, as they are at one moment.
-- keys: tools, pins

return {redis.call('HGETALL', tools), redis.call('HGETALL', pins)}
