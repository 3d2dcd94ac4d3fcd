-- Has a call wait for its approval, in the ledger and beside it, unless it joins another one. It is in no queue, and not begun.
-- intent: the idempotency key if it has one, as `admission/admit` has it, with `intention` and `intent_seconds`; else the record.
-- waiting: the calls that wait for something, by when (ms) somebody has to look at them. most: how many may.
-- deadline: until when (s) the call waits. request: what people see of it; call: it, as it is published; both sealed.
-- summary: the request without large arguments, sealed; words: what those who may see it have, as `approvals/list` compares them.
-- stored: where its user's share is counted, of which it takes its part; stored_bytes_most: how much of that others may have.
-- expires_ms: by the fleet's clock. seconds: how long record and approval live. channel: where others hear of it.
-- trace: where the call was made in a trace, as lines; "" in none. Nobody signs it, and it decides nothing.
-- events: the stream of what happens to approvals, which the record names until people have decided.
-- keys: record, intent, approval, waiting, events, stored
-- args: call_id, deadline, intention, intent_seconds, request, call, expires_ms, seconds, effect, most, channel, trace
-- args: summary, words, stored_bytes_most
-- constants: APPROVALS_SINCE
-- include: admission/intention, approvals/event, approvals/usage
-- lazily: admission/joins(joins), admission/run_id(run_id)

if redis.call('HGET', approval, 'state') == 'waiting' then return {'waiting'} end -- the answer was lost
local joined = digest and joins()
if joined then return joined end
if redis.call('EXISTS', record) == 1 or redis.call('EXISTS', approval) == 1 then return {'ended', call_id} end
local count = redis.call('ZCARD', waiting)
if count >= tonumber(most) then return {'crowd', count} end
local bytes = stored_bytes(stored, now)
if bytes > tonumber(stored_bytes_most) then return {'stored', bytes} end
redis.call('HSET', record, 'token', 'approval', 'lease', expires_ms, 'begun', 0, 'effect', effect, 'as', 'busy', 'granted',
  'approval', 'v', APPROVALS_SINCE, 'approval_events', events, 'approval_channel', channel)
redis.call('HSET', approval, 'state', 'waiting', 'revision', 1, 'request', request, 'call', call, 'expires_ms', expires_ms,
  'summary', summary, 'summarised', 1, 'words', words)
usage_add(approval, stored, call_id, #request + #call + #summary, tonumber(expires_ms))
if trace ~= '' then redis.call('HSET', approval, 'trace', trace) end
redis.call('EXPIRE', record, seconds)
redis.call('EXPIRE', approval, seconds)
redis.call('ZADD', waiting, expires_ms, call_id)
if digest then
  redis.call('SET', intent, call_id .. ' ' .. digest .. ' ' .. deadline .. ' ' .. run_id(), 'EX', intent_seconds)
end
approval_event(events, channel, call_id, 'asked')
return {'waiting'}
