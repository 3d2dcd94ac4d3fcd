-- A worker ends, or consumes other queues from now on.
-- keys: notes
-- args: note

local clock = redis.call('TIME')
redis.call('ZADD', notes, 'XX', string.format('%.3f', clock[1] + clock[2] / 1000000), note)
return 1
