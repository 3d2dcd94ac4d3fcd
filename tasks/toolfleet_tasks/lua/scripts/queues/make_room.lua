-- A worker is done with a message of a module with a bound: the next one may be taken, and the place of the call is freed if it
-- was never claimed.
-- running: the module's running calls.
-- keys: running, queue, bell
-- args: call_id
-- include: overload/room

room_release(running, call_id)
if redis.call('EXISTS', queue) == 1 and redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
return 1
