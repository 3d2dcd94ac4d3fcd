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
-- lazily: admission/admitted(admitted)
-- constants: BYTES_FROM_MESSAGES, CALLER_LIMIT_KEPT_SECONDS

-- So it is with nearly every call: no key, no record of it, a module that is there, no queue that is paused or drains, and room.
-- What is written before it shows that more is to be known, or that something fails, is written again below; the message comes
-- last.
local function admitted_at_once()
  local most = tonumber(bound)
  if intention ~= '' or needs_worker == '1' or keep_ms ~= '0' or message == '' or most <= 0 then return end
  if redis.call('EXISTS', record, breaker, stored .. ':bytes', queue_states) > 0 then return end
  if limit ~= '0' then
    local length = redis.call('LLEN', queue)
    if length >= tonumber(limit) then return end
    if length >= BYTES_FROM_MESSAGES and #message * limit > tonumber(backlog_bytes) then return end
  end
  redis.call('ZADD', caller_limit, math.ceil(deadline), call_id)
  local count = redis.call('ZCARD', caller_limit)
  if count > most then return end
  if count == 1 then redis.call('PEXPIRE', caller_limit, CALLER_LIMIT_KEPT_SECONDS * 1000) end
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
  redis.call('LPUSH', queue, message)
  return 0
end

local is_done, answer = pcall(admitted_at_once)
if is_done and answer then return answer end
return admitted()
