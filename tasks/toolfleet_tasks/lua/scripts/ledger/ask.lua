-- Keeps what a module asks whoever began a call, and lets go of the call until that is answered. It is no attempt any more,
-- unless its module goes on with it by itself.
-- question: what it asks, with its signature and a space before it if there is one.
-- round: which question of the call it is, from 1.
-- message: the call as it travels once it is answered. so_far: what the call may have done.
-- accepted: under which handle its module goes on with it, with its signature as above, and takes the answer; '' if it is begun
--   again with that.
-- until_ms: its deadline, for workers of the first version.
-- channel: where those are told that follow the call.
-- outcome: `input_required <ms>`. away, failures, longest_ms: as `ledger/close` has them.
-- keys: record, result, caller_limit, running, breaker
-- args: token, call_id, attempt, effect, so_far, question, round, message, accepted, until_ms, channel
-- args: outcome, away, failures, longest_ms, seconds
-- constants: ANSWERED_THERE_SINCE
-- include: now, overload/caller_limit, overload/running, ledger/noted, ledger/trail

local found = redis.call('HMGET', record, 'token', 'parked', 'log', 'begun', 'state')
if found[2] == token then return 1 end
if running ~= record and (found[1] == token or found[5] == 'done') then running_leave(running, call_id) end
if found[5] == 'done' then return 2 end
if found[1] ~= token and (found[1] or found[4]) then return 0 end
local log = noted(found[3] or '')
local goes_on = accepted ~= ''
local claimed, worker = held_by(token)
trail_added('asked', round, claimed, string.match(outcome, ' (%d+)') or 0, now, worker, replica_of())
redis.call('HSET', record, 'parked', token, 'question', question, 'round', round, 'message', message,
  'begun', goes_on and attempt or attempt - 1, 'effect', effect, 'so_far', so_far, 'log', log,
  'v', goes_on and ANSWERED_THERE_SINCE or 2, 'token', 'asked', 'lease', until_ms, 'as', 'busy', 'granted', 'asked')
redis.call('HDEL', record, 'lapsed', 'known', 'known_line', 'accepted', 'ask_at')
if goes_on then redis.call('HSET', record, 'accepted', accepted) end
redis.call('EXPIRE', record, seconds)
-- It occupies nobody: its caller may have others in its place.
if caller_limit ~= record then caller_leave(caller_limit, call_id) end
redis.call('PUBLISH', channel, 'input_required')
return 1
