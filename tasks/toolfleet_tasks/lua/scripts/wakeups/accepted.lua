-- Somebody has taken the news: whoever tries it meanwhile need not any more.
-- keys: wake, due
-- args: id

redis.call('ZREM', due, id)
return redis.call('DEL', wake)
