-- Lets a call in, and puts its message into its queue. May be sent again, with the same id, if it has no message.
-- intent: the idempotency key if it has one. Its value is `<call id> <digest> <deadline> <the server's run id>`. It stands for that
--   call until it expires, or its call ends with nothing done, or the deadline has passed and no worker has ever begun the call.
-- message: '' if it is published otherwise. limit: how many messages may wait in the queue, 0 where that is judged elsewhere.
-- bound: the caller's limit; negative: twice the lane's slots, and so many where none are known.
-- stored: where its caller's stored results are counted.
-- keep_ms: for how long the limit's key must live, 0: as it is. deadline: in s, by the clock of the agent that made the call.
-- intention: with an idempotency key, the digest of what the call would do, with the fleet's time (s) behind it, else ''; kept for
--   intent_seconds. needs_worker: '1' if somebody must consume the queue, else ''.
-- keys: queue, notify_key, breaker, caller_limit, stored, slots, record, queue_states, intent?
-- args: call_id, deadline, message, limit, bound, keep_ms, intent_seconds, intention, backlog_bytes, stored_bytes_most
-- args: needs_worker
-- include: overload/caller_limit, admission/publish, admission/decided

local function judged()
  return stands_against() or is_full()
end

local function let_in()
  if caller_take(caller_limit, call_id, deadline, bound, tonumber(keep_ms)) == 0 then return {'share', bound} end
  return publish()
end

return decided(judged, let_in)
