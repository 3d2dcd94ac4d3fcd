-- Keeps an attempt open that its module goes on with by itself, and lets go of the call until it comes back to be asked for.
-- accepted: under which handle, with its signature and a space before it if there is one. wait_ms: so long nobody need ask.
-- outcome: `<what was heard> <ms>` of the request that has just ended. away, failures, longest_ms: as `ledger/close` has them.
-- keys: record, result, caller_limit, running, breaker
-- args: token, call_id, attempt, effect, accepted, wait_ms, outcome, away, failures, longest_ms, seconds
-- include: now, overload/caller_limit, overload/running, breaker/note, ledger/trail

local found = redis.call('HMGET', record, 'token', 'parked', 'state', 'begun', 'accepted', 'replica')
if found[2] == token then return 1 end
if running ~= record and (found[1] == token or found[3] == 'done') then running_leave(running, call_id) end
if found[3] == 'done' then return 2 end
if found[1] ~= token and (found[1] or found[4]) then return 0 end
if away ~= '' then breaker_note(breaker, now, tonumber(away), tonumber(failures), tonumber(longest_ms), outcome) end
if found[5] then -- it was asked where the call is
  redis.call('HINCRBY', record, 'polls', 1)
else
  local claimed, worker = held_by(token)
  trail_added('accepted', attempt, claimed, string.match(outcome, ' (%d+)') or 0, now, worker, word(found[6]))
end
-- Its module has begun it: whoever knows nothing of what is accepted must not take it for undone, nor begin or end it. Workers
-- of the first version, which look at no `v`, find it in somebody's hands, and once that lease is over, `busy`.
redis.call('HSET', record, 'parked', token, 'accepted', accepted, 'ask_at', now + wait_ms, 'begun', attempt, 'effect', effect,
  'so_far', 'unknown', 'v', 2, 'token', 'parked', 'lease', now + wait_ms, 'as', 'busy', 'granted', 'parked')
redis.call('HDEL', record, 'lapsed', 'known', 'known_line')
redis.call('EXPIRE', record, seconds)
-- It occupies nobody: its caller may have others in its place.
if caller_limit ~= record then caller_leave(caller_limit, call_id) end
return 1
