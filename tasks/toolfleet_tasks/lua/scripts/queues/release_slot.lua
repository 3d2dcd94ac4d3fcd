-- A worker is done with a message of a module with a bound: the next one may be taken, and the place of the call is freed if it
-- was never claimed.
-- running: the module's running calls.
-- keys: running, queue, notify_key
-- args: call_id
-- include: overload/running

running_release(running, call_id)
if redis.call('EXISTS', queue) == 1 and redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
return 1
