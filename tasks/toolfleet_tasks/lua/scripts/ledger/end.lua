-- The call's one result, from outside: its deadline has passed, its caller takes it back, or Celery has ended it.
-- mode: `unbegun` to end it only if no attempt was ever begun; `refused` for the same where each end says that nothing has
--   happened; else `any`.
-- data: which data Redis must have, so that a record that is not there never was: `*` whichever, '' it may have been lost.
-- unbegun, undone, unknown: Celery's values for a call that was never begun, for one whose attempts surely did nothing, and
--   for any other. letter: a dead letter for the last.
-- line: the beginning of the audit line; line_unbegun and so on: its end for each of the three.
-- yields: '1' if what its worker has noted counts more than `unknown`.
-- keys: record, result, caller_limit, running, breaker, intent, dead, dead_order, audit_stream, data_id
-- args: token, call_id, mode, data, result_seconds, record_seconds, unbegun, undone, unknown, letter, letters_kept
-- args: line, line_unbegun, line_undone, line_unknown, lines_kept, yields
-- include: now, ledger/kept_success, ledger/ended
-- lazily: approvals/event(approval_event), ledger/trail_cut(trail_cut)

local found = redis.call('HMGET', record, 'state', 'begun', 'token', 'so_far', 'result', 'log', 'as', 'by', 'known',
  'known_line', 'may_begin')
if found[1] == 'done' then
  return {found[8] == token and 'ended' or 'done', found[5] or kept_success(result), '', 1}
end
local waits = found[3] == 'approval' or found[11] -- for people, or for its first attempt, which they have approved
if mode ~= 'any' and found[2] and not waits then return {'begun'} end
local begun = tonumber(found[2] or 0) > 0
local is_open = found[3] and found[7] == 'go'
local log = found[6] or ''
if is_open then log = log .. found[2] .. ' never_closed 0;' end
local nothing_happened = not is_open and (found[4] or 'none') == 'none'
local is_whole = data == '*' or data ~= '' and redis.call('GET', data_id) == data
if not found[2] and not is_whole then nothing_happened = mode == 'refused' end
if found[3] == 'approval' then -- taken back while people decide; once they have, the record names no stream any more
  local where = redis.call('HMGET', record, 'approval_events', 'approval_channel')
  if where[1] then approval_event(where[1], where[2], call_id, 'withdrawn') end
  -- There is something to do about it: what it has in its user's share is given back. The name stands beside `call:`.
  redis.call('ZADD', string.sub(record, 1, -#call_id - 6) .. 'approvals-waiting', 'XX', now, call_id)
end
redis.call('HSET', record, 'state', 'done', 'by', token, 'log', log)
redis.call('HDEL', record, 'token', 'lease', 'as', 'last', 'last_signature', 'known', 'known_line', 'question', 'message',
  'approved', 'may_begin', 'approval_events', 'approval_channel')
local value, line_end = unknown, line_unknown
if nothing_happened and begun then
  value, line_end = undone, line_undone
elseif nothing_happened then
  value, line_end = unbegun, line_unbegun
elseif yields == '1' and found[9] then
  value, line_end = found[9], found[10]
end
redis.call('SET', result, value, 'EX', result_seconds)
redis.call('PUBLISH', result, value)
ended(record_seconds, nothing_happened, nothing_happened and '' or letter, tonumber(letters_kept), log)
local trail = found[2] and trail_cut(found[2], is_open and found[3]) or ''
line = line .. ',"attempts":' .. (found[2] or 0) .. trail .. line_end
return {'ended', value, line, audit(audit_stream, lines_kept, line) and 1 or 0}
