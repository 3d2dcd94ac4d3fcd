-- The call's one result, from who holds it.
-- attempt: how many were begun. outcome: `<outcome> <ms>` of this one, '' without one.
-- away, failures, longest_ms: as `ledger/close` has them. effect_state: what has happened.
-- value: Celery's for its key, '' where Celery writes it itself.
-- announcement: '' for the value itself; without a value, the result.
-- letter: a dead letter, '' for none.
-- keys: record, result, caller_limit, running, breaker, intent, dead, dead_order, audit_stream
-- args: token, call_id, attempt, outcome, away, failures, longest_ms, effect_state, result_seconds, record_seconds
-- args: value, announcement, letter, letters_kept, line, lines_kept
-- include: audit, ledger/logged
-- lazily: ledger/trail_finished(trail_finished)
-- lazily: overload/running(running_leave), ledger/noted(noted), ledger/counted(counted), ledger/ended(ended)
-- constants: COUNTED_FROM_BYTES

local FIELDS_OF_ONE_ATTEMPT = 6 -- that stay: more are there if anything else has happened to the call
local found = redis.call('HMGET', record, 'token', 'closed', 'log', 'begun', 'state', 'by')
local log = found[3] or ''
if running ~= record and (found[1] == token or found[5] == 'done') then running_leave(running, call_id) end
if found[5] == 'done' then return found[6] == token and 1 or 0 end
-- Without a record Redis has lost it, and nobody else has the call.
if found[1] ~= token and found[2] ~= token and (found[1] or found[4]) then return 0 end
if found[2] == token and found[1] then return 0 end
if found[2] ~= token then
  local is_plain = away == '0' and redis.call('EXISTS', breaker) == 0 -- nearly always: its breaker need not hear of it
  log = is_plain and logged(log) or noted(log)
end
redis.call('HSET', record, 'state', 'done', 'by', token, 'begun', attempt, 'log', log)
redis.call('HDEL', record, 'token', 'lease', 'as')
if redis.call('HLEN', record) > FIELDS_OF_ONE_ATTEMPT then
  redis.call('HDEL', record, 'last', 'last_signature', 'known', 'known_line', 'accepted', 'ask_at', 'parked', 'granted',
    'question', 'message', 'answered')
  line = string.sub(line, 1, -2) .. trail_finished(found[2] ~= token) .. '}'
end
if value == '' then
  redis.call('HSET', record, 'result', announcement)
else
  redis.call('SET', result, value, 'EX', result_seconds)
  redis.call('PUBLISH', result, announcement == '' and value or announcement)
end
local size = #value + (value == '' and #announcement or 0)
if size >= COUNTED_FROM_BYTES then counted(size) end
if effect_state == 'none' or letter ~= '' then
  ended(record_seconds, effect_state == 'none', letter, tonumber(letters_kept), log)
else
  redis.call('EXPIRE', record, record_seconds)
  if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
end
return audit(audit_stream, lines_kept, line) and 1 or 2
