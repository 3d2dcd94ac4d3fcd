-- Takes back that a call was let in: it is surely in no queue. May be sent again.
-- held: where its limits are noted. intent: its idempotency key if it has one.
-- keys: caller_limit, held, intent?
-- args: call_id
-- include: overload/caller_limit, limits/give_back

caller_leave(caller_limit, call_id)
limits_return(held, call_id)
local holder = intent and redis.call('GET', intent)
if holder and string.match(holder, '^%S+') == call_id then redis.call('DEL', intent) end
return 1
