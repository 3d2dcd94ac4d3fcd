-- Nothing more is to be done about a call's approval: it stands among the last that were settled.
-- settled: these, by when (ms). kept: how many of them.
-- keys: waiting, settled
-- args: call_id, fleet_ms, kept, seconds

redis.call('ZREM', waiting, call_id)
redis.call('ZADD', settled, fleet_ms, call_id)
redis.call('ZREMRANGEBYRANK', settled, 0, -kept - 1)
redis.call('EXPIRE', settled, seconds)
return 1
