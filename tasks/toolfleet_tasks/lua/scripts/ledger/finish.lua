-- The call's one result, from who holds it.
-- attempt: how many were begun. outcome: `<outcome> <ms>` of this one, '' without one.
-- away, failures, longest_ms: as `ledger/close` has them. effect_state: what has happened.
-- value: Celery's for its key, '' where Celery writes it itself.
-- announcement: '' for the value itself; without a value, the result.
-- letter: a dead letter, '' for none.
-- keys: record, result, caller_limit, running, breaker, intent, dead, dead_order, audit_stream
-- args: token, call_id, attempt, outcome, away, failures, longest_ms, effect_state, result_seconds, record_seconds
-- args: value, announcement, letter, letters_kept, line, lines_kept
-- include: audit
-- lazily: ledger/finished(finished)
-- constants: COUNTED_FROM_BYTES

-- So it is with nearly every call: its record is as one claim has written it, its result is small, and nobody else need hear of
-- its end. What is written here, `finished` would write.
local FIELDS_OF_A_CLAIM = 7
local is_plain = outcome ~= '' and away == '0' and effect_state ~= 'none' and letter == ''
if is_plain and value ~= '' and #value < COUNTED_FROM_BYTES and redis.call('HLEN', record) == FIELDS_OF_A_CLAIM then
  local found = redis.call('HMGET', record, 'token', 'log')
  if found[1] == token and found[2] and redis.call('EXISTS', breaker) == 0 then
    redis.call('HSET', record, 'state', 'done', 'by', token, 'log', found[2] .. attempt .. ' ' .. outcome .. ';')
    redis.call('HDEL', record, 'token', 'lease', 'as')
    redis.call('SET', result, value, 'EX', result_seconds)
    redis.call('PUBLISH', result, announcement == '' and value or announcement)
    redis.call('EXPIRE', record, record_seconds)
    if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
    if running ~= record then redis.call('ZREM', running, call_id) end
    return audit(audit_stream, lines_kept, line) and 1 or 2
  end
end
return finished()
