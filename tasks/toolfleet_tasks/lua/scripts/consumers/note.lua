-- Notes a worker.
-- consumed: the digest's queues. seconds: for how long the note counts. queues: if they are to be written.
-- keys: notes, consumed
-- args: note, seconds, queues...
-- constants: KEPT_SECONDS

local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
redis.call('ZADD', notes, string.format('%.3f', now + seconds), note)
redis.call('ZREMRANGEBYSCORE', notes, '-inf', now - KEPT_SECONDS)
redis.call('ZREMRANGEBYSCORE', notes, now + KEPT_SECONDS, '+inf') -- the clock was set back: who lives says so again
redis.call('EXPIRE', notes, KEPT_SECONDS)
for i = 1, #queues, 1000 do redis.call('SADD', consumed, unpack(queues, i, math.min(i + 999, #queues))) end
return redis.call('EXPIRE', consumed, 2 * KEPT_SECONDS)
