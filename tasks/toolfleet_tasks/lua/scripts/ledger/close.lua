-- An attempt has ended, and another may follow.
-- outcome: `<outcome> <ms>`.
-- away: 1 if the module counts as away, 0 if not, '' if it was not met.
-- failures, longest_ms: after how many its breaker opens, and for how long at most.
-- so_far: what the attempts may have done. last: the result of this one; signature: the result's, or ''.
-- keys: record, result, caller_limit, running, breaker
-- args: token, call_id, attempt, outcome, away, failures, longest_ms, so_far, last, seconds, signature
-- include: now, overload/running, ledger/noted, ledger/trail

local found = redis.call('HMGET', record, 'token', 'closed', 'log', 'begun', 'state')
if found[2] == token then return 1 end
-- Ended from outside, which leaves it its place.
if running ~= record and found[5] == 'done' then running_leave(running, call_id) end
if found[1] ~= token and (found[1] or found[4] or found[5]) then return 0 end
local log = noted(found[3] or '')
local claimed, worker = held_by(token)
local how, ms = string.match(outcome, '^(%S+) (%d+)')
if how then trail_added('attempt', attempt, claimed, ms, now, how, worker, replica_of()) end
redis.call('HSET', record, 'closed', token, 'closed_at', now, 'begun', attempt, 'so_far', so_far, 'last', last, 'log', log)
redis.call('HDEL', record, 'token', 'lease', 'as', 'accepted', 'ask_at', 'parked', 'granted')
if signature ~= '' then redis.call('HSET', record, 'last_signature', signature) end
redis.call('EXPIRE', record, seconds)
if running ~= record then running_leave(running, call_id) end
return 1
