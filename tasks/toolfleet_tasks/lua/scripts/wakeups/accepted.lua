-- Somebody has accepted an event: whoever tries to deliver it meanwhile need not any more.
-- keys: wake, due
-- args: id

redis.call('ZREM', due, id)
return redis.call('DEL', wake)
