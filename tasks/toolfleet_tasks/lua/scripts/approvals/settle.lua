-- Nothing more is to be done about a call's approval: it stands among the last that were settled, and counts in no share.
-- settled: these, by when (ms). kept: how many of them.
-- request, call: both without large arguments, which nothing needs any more; '' where they stay as they are.
-- keys: waiting, settled, approval
-- args: call_id, fleet_ms, kept, seconds, request, call
-- include: approvals/usage

redis.call('ZREM', waiting, call_id)
redis.call('ZADD', settled, fleet_ms, call_id)
redis.call('ZREMRANGEBYRANK', settled, 0, -kept - 1)
redis.call('EXPIRE', settled, seconds)
usage_remove(approval)
if call ~= '' and redis.call('EXISTS', approval) == 1 then
  redis.call('HSET', approval, 'request', request, 'call', call, 'trimmed', 1)
end
return 1
