-- The ledger: a call's record, and what may happen to it. `ledger/scripts.py` says what the record has. Of the arguments:
-- token: of who is at the call. running: the calls that run in its module, or the record where the module has no bound.
-- attempt: how many were begun. effect: what a repeat would do. so_far: what the call may have done.
-- outcome: `<outcome> <ms>` of the attempt, '' without one.
-- away: 1 if the module counts as away, 0 if not, '' if it was not met. failures, longest_ms: after how many its breaker opens,
--   and for how long at most.
-- replica: which of its module's processes has the call; '' where the module has one address.
-- value: Celery's. letter: a dead letter, '' for none; letters_kept: how many. line: of the audit; lines_kept: how many.
-- include: clock, overload, storage
-- lazily: ledger(counted, ended, finished, kept_success, noted, trail_broken, trail_finished, trail_read)
-- lazily: approvals(approval_event)
-- lazily: breaker(breaker_note, breaker_pass, breaker_spare, breaker_state, breaker_why), dead_letters(bury), limits(limits_return)
-- lazily: overload(running_take, running_renew), queue_states(state_holds), turns(turn_has, turn_hold, turn_over)

-- The first word of a text, of signs that JSON takes as they are.
local function word(text)
  local said = string.gsub(string.match(text or '', '^%S+') or '', '[^%w%.@:/_%-]', '_')
  return said == '' and '-' or said
end

-- When (ms, by the fleet's clock) a token was made to claim the call, and by which worker; 0 and '-' if it does not say.
local function held_by(holder)
  local micros, worker = string.match(holder or '', '~(%x+)~(.*)$')
  return math.floor((tonumber(micros or '0', 16) or 0) / 1000), word(worker)
end

-- Which of its module's processes has the call, as a word.
local function replica_of()
  return word(redis.call('HGET', record, 'replica') or '')
end

-- Notes in the record a part of the call's time, of a call to which more happens than that it runs once: words with a space
-- between, and `;`. They are bounded.
local function trail_added(kind, ...)
  local trail = (redis.call('HGET', record, 'trail') or '') .. table.concat({kind, ...}, ' ') .. ';'
  if #trail <= TRAIL_BYTES then redis.call('HSET', record, 'trail', trail) end
end

-- The attempt that ends now.
local function trail_ended()
  local how, ms = string.match(outcome, '^(%S+) (%d+)')
  if not how then return end
  local claimed, worker = held_by(token)
  trail_added('attempt', attempt, claimed, ms, now, how, worker, replica_of())
end

-- An attempt that has not ended: its worker, which holds the call by this token, was heard until `seen` (ms).
local function trail_broken(kind, number, holder, seen)
  local claimed, worker = held_by(holder)
  trail_added(kind, number, claimed, seen, now, worker, replica_of())
end

-- What the record knows of it, as it goes into the audit line; '' for nothing.
local function trail_read()
  local found, said = redis.call('HMGET', record, 'trail', 'polls', 'replica'), ''
  if found[1] then said = said .. ',"trail":"' .. string.gsub(found[1], '[^%w%.@:/_%- ;]', '_') .. '"' end
  if found[2] then said = said .. ',"polls":' .. (tonumber(found[2]) or 0) end
  if found[3] and found[3] ~= '' then said = said .. ',"replica":"' .. word(found[3]) .. '"' end
  return said
end

-- The same; `is_last`: with the attempt that ends now, if there is a trail.
local function trail_finished(is_last)
  if is_last and outcome ~= '' and redis.call('HEXISTS', record, 'trail') == 1 then trail_ended() end
  return trail_read()
end

-- The call's result, if it is still there, else ''. When its text was dropped after it had been had, Celery may have written that
-- it has revoked the call.
local function kept_success(key)
  local value = redis.call('GET', key)
  return value and string.sub(value, 1, 20) == '{"status": "SUCCESS"' and value or ''
end

-- Tells the module's breaker how the attempt has ended, and returns the call's log with that in it.
local function noted(log)
  if away ~= '' then
    local is_news = away ~= '0' or redis.call('EXISTS', breaker) == 1 -- nearly always there is nothing to forgive
    if is_news then breaker_note(breaker, now, tonumber(away), tonumber(failures), tonumber(longest_ms), outcome) end
  elseif outcome ~= '' then
    breaker_spare(breaker)
  end
  return outcome ~= '' and log .. attempt .. ' ' .. outcome .. ';' or log
end

-- Adds a line to the audit's stream, which keeps about so many. False if that did not work.
-- A line that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function audit(key, kept, line)
  return type(redis.pcall('XADD', key, 'MAXLEN', '~', kept, '*', 'line', line)) ~= 'table'
end

-- Publishes an event of the call on its own channel, and on the reply channel of the agent that has made the call's id: the last
-- digits of the id name it, so that it is known without a record, too. reply: what is published there if `content` does not name
-- the call.
local function announce(record, call_id, channel, content, reply)
  redis.call('PUBLISH', channel, content)
  local base = string.sub(record, 1, -#call_id - 6) -- before `call:`
  redis.pcall('PUBLISH', base .. 'reply:' .. string.sub(call_id, -REPLY_DIGITS), reply or content)
end

-- Takes back a claim that was made as the call's message was taken, and of which nothing has come: the record has nothing else.
-- token: also without what follows the message's tag. Whatever other key is there stays.
local function claim_forget(record, token)
  local held = redis.pcall('HGET', record, 'token')
  if type(held) ~= 'string' or (held ~= token and string.sub(held, 1, #token + 1) ~= token .. '~') then return 0 end
  return redis.call('DEL', record)
end

-- Has the call wait for something. Its place in its module is free, and who has parked it holds it no longer. Else returns what
-- the script answers: 1 if it was done before, 2 if the call has ended, 0 if others have it.
local function parted(found)
  if found[1] == token then return 1 end
  if running ~= record and (found[2] == token or found[3] == 'done') then redis.call('ZREM', running, call_id) end
  if found[3] == 'done' then return 2 end
  if found[2] ~= token and (found[2] or found[4]) then return 0 end
end

-- Whoever knows nothing of such a call must not take it for undone, nor begin or end it: workers of the first version, which
-- look at no `v`, find it in somebody's hands, and once that lease is over, `busy`. It occupies nobody: its caller may have others
-- in its place.
local function set_aside(in_turn, state, until_ms, version, ...)
  redis.call('HDEL', record, 'lapsed', 'known', 'known_line', 'accepted', 'ask_at')
  if in_turn then version = TURNS_SINCE end
  redis.call('HSET', record, 'parked', token, 'token', state, 'granted', state, 'as', 'busy', 'lease', until_ms, 'v', version,
    'effect', effect, ...)
  redis.call('EXPIRE', record, seconds)
  if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
end

-- What every call's end does beside the result. The call counts no longer, and an intention that came to nothing is open again.
local function ended(ttl, nothing_happened, letter, kept, log)
  redis.call('EXPIRE', record, ttl)
  if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
  if nothing_happened and intent ~= record then
    local holder = redis.call('GET', intent)
    if holder and string.match(holder, '^%S+') == call_id then redis.call('DEL', intent) end
  end
  if nothing_happened then
    limits_return(string.sub(record, 1, -#call_id - 6) .. 'held:' .. call_id, call_id) -- beside `call:`
  end
  if letter ~= '' then bury(dead, dead_order, call_id, now, letter, kept, log) end
end

-- Counts the call's result, which has so many bytes, among those that are stored for its caller.
local function counted(size)
  local stored = stored_key(caller_limit)
  if not stored then return end
  stored_add(stored, call_id, size, now, result_seconds * 1000)
  redis.call('HSET', record, 'size', size)
end

-- The call's one result, whatever has happened to it.
local FIELDS_OF_ONE_ATTEMPT = 6 -- that stay: more are there if anything else has happened to the call

local function finished()
  local found = redis.call('HMGET', record, 'token', 'closed', 'log', 'begun', 'state', 'by', 'turn', 'accepted')
  local log, base = found[3] or '', string.sub(record, 1, -#call_id - 6)
  if running ~= record and (found[1] == token or found[5] == 'done') then redis.call('ZREM', running, call_id) end
  if found[5] == 'done' then
    local open = attempt .. ' never_closed 0;' -- it was ended from outside, and its module has answered now
    if found[7] and outcome ~= '' and (found[8] or string.sub(';' .. log, -#open - 1) == ';' .. open) then
      pcall(turn_over, base, call_id, ' ' .. outcome .. ';', effect_state, found[7])
    end
    return found[6] == token and 1 or 0
  end
  -- Without a record Redis has lost it, and nobody else has the call.
  if found[1] ~= token and found[2] ~= token and (found[1] or found[4]) then return 0 end
  if found[2] == token and found[1] then return 0 end
  if found[2] ~= token then log = noted(log) end
  redis.call('HSET', record, 'state', 'done', 'by', token, 'begun', attempt, 'log', log)
  redis.call('HDEL', record, 'token', 'lease', 'as', 'last', 'last_signature', 'known', 'known_line', 'accepted', 'ask_at',
    'parked', 'granted', 'question', 'message', 'answered')
  if redis.call('HLEN', record) > FIELDS_OF_ONE_ATTEMPT then
    line = string.sub(line, 1, -2) .. trail_finished(found[2] ~= token) .. '}'
  end
  if value == '' then
    redis.call('HSET', record, 'result', announcement)
  else
    redis.call('SET', result, value, 'EX', result_seconds)
    announce(record, call_id, result, announcement == '' and value or announcement)
  end
  local size = #value + (value == '' and #announcement or 0)
  if size >= COUNTED_FROM_BYTES then counted(size) end
  if effect_state == 'none' or letter ~= '' then
    ended(record_seconds, effect_state == 'none', letter, tonumber(letters_kept), log)
  else
    redis.call('EXPIRE', record, record_seconds)
    if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
  end
  if found[7] then -- what fails here is found by a look at the line
    pcall(turn_over, base, call_id, log, effect_state, found[7])
  end
  return audit(audit_stream, lines_kept, line) and 1 or 2
end

-- script: claim(record, result, caller_limit, running, breaker, queue_states;
--   token, call_id, lease_ms, effect, seconds, bound, most_attempts, most_deaths, killed, patience_ms, can_reach, replica,
--   round, approval, lane, turn?)
-- Asks for a call, and begins an attempt where one may begin.
-- bound: how many calls of its module may run at once, 0 for any number.
-- most_attempts: how often the call may be begun. most_deaths: how many workers may die with it.
-- killed: whether two workers have died with the call: `yes`, `no`, or `lapsed` if the leases that ran out say so.
-- patience_ms: how long the call may wait for a module that is away.
-- can_reach: '1' if this worker can connect to the module, as far as it knows. replica: which the worker would ask.
-- round: which question of the call's the message answers, 0 for none.
-- approval: to what an approval is bound that the call needs; '' for none.
-- queue_states: which queues operators have paused; lane: the call's.
-- turn: when the attempt has surely ended (ms, the fleet's clock), and the line in which the call needs a turn.
local lease_end = now + lease_ms
-- So it is with nearly every call: nobody has begun it before, nothing is to be known of its module, and no queue is paused.
local is_plain = bound == '0' and approval == '' and killed ~= 'yes' and can_reach == '1' and not turn
if is_plain and redis.call('EXISTS', record, breaker, queue_states) == 0 then
  redis.call('HSET', record, 'token', token, 'lease', lease_end, 'begun', 1, 'effect', effect, 'so_far', 'none', 'log', '',
    'as', 'go')
  if replica ~= '' then redis.call('HSET', record, 'replica', replica, 'scattered', '', 'v', REPLICAS_SINCE) end
  redis.call('EXPIRE', record, seconds)
  return {'go', 1, 'none', '', '', 0, '', replica, '', ''}
end
bound, most_attempts, most_deaths = tonumber(bound), tonumber(most_attempts), tonumber(most_deaths)
local base, ends_ms, line = string.sub(record, 1, -#call_id - 6), string.match(turn or '', '^(%d+) (.*)$')
local found = {} -- so it is at a call's first claim
if redis.call('EXISTS', record) == 1 then
  found = redis.call('HMGET', record, 'state', 'token', 'lease', 'begun', 'effect', 'so_far', 'last', 'log', 'as', 'result',
    'last_signature', 'lapsed', 'v', 'accepted', 'ask_at', 'replica', 'scattered', 'granted', 'approved', 'closed_at')
end
if tonumber(found[13] or 1) > VERSION then return {'newer'} end
local state, holder, lease, begun = found[1], found[2], tonumber(found[3] or 0), tonumber(found[4] or 0)
local so_far, last, log, as = found[6] or 'none', found[7] or '', found[8] or '', found[9]
local at, scattered = found[16] or '', found[17] or ''
effect = found[5] or effect
if found[11] then last = found[11] .. ' ' .. last end
-- Whoever knows nothing of calls with which modules go on finds one `busy`, and may have put his name on it.
if as == 'busy' then as = found[18] end
if as == 'parked' then holder = false end
if state == 'done' then
  if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end -- it may have been let in after its end
  if turn then turn_over(base, call_id, log, '', redis.call('HGET', record, 'turn'), found[14]) end -- an older process ended it
  return {'done', found[10] or kept_success(result)}
end
if holder == 'approval' then return {'stale'} end -- people decide: whatever has brought a message of it
-- A module has asked something: only the message that brings the last answer may begin the call.
local has_asked = log ~= '' and string.find(log, ' input_required ', 1, true)
if has_asked then
  local asked = tonumber(redis.call('HGET', record, 'round'))
  -- Its module goes on with it: the message that was there stays, to see whether it ends, for then the module is told.
  if holder == 'asked' and found[14] and tonumber(round) == asked - 1 then return {'early', END_CHECK_MS} end
  if holder == 'asked' or tonumber(round) ~= asked then return {'stale'} end
end
local patience = tonumber(patience_ms)
if found[20] then patience = math.max(patience, math.min(found[20] - now, 0) + PATIENCE_MS) end
local function answered(kind, rest, at, scattered)
  local why, left = kind == 'open' and breaker_why(breaker) or '', found[20] and patience or 0
  return {kind, begun, so_far, last, log, rest, found[14] or '', at, scattered, found[19] or '', why, left}
end
if holder == token then -- the answer was lost, and the lease may have run out meanwhile
  redis.call('HSET', record, 'lease', lease_end)
  if bound > 0 then running_renew(running, call_id, lease_end) end
  return answered(as, 0, at, scattered)
end
if holder and lease > lease_end + 1000 then -- Redis's clock was set back: it must not hold for that much longer
  lease = lease_end
  redis.call('HSET', record, 'lease', lease)
end
if holder and lease > now then return {'busy', lease - now} end
local kind
local lapsed = tonumber(found[12] or 0)
if not holder and found[14] then
  -- Its module goes on with it. A second message of the call comes too early; and one that is silent for all is left alone.
  local rest = (tonumber(found[15]) or 0) - now
  local state, pause = breaker_state(breaker, now)
  if state == 'open' then rest = math.max(rest, pause) end
  if rest > 0 and rest < LONGEST_WAIT_MS then return {'early', rest} end
  kind = 'accepted'
elseif holder and as ~= 'go' then
  kind = as -- who was to end the call has died, or who asked where it is
  if as == 'accepted' and lease > 0 then lapsed = lapsed + 1 end
elseif holder then
  trail_broken('lost', begun, holder, lease > 0 and math.max(lease - lease_ms, 0) or now)
  log, so_far = log .. begun .. ' never_closed 0;', 'unknown'
  if lease > 0 then lapsed = lapsed + 1 end -- else whoever had it has let it go
  kind = (begun < most_attempts and (effect == 'read' or effect == 'idempotent')) and 'go' or 'unknown'
else
  kind = begun < most_attempts and 'go' or 'exhausted'
end
-- What people have approved is begun once under their approval; what follows are attempts of the same call.
if kind == 'go' and approval ~= '' and not found[19] then kind = 'unapproved' end
local is_killed = killed == 'yes' or (killed == 'lapsed' and lapsed >= most_deaths)
if is_killed and (kind == 'go' or kind == 'unknown' or kind == 'accepted') then kind = 'killed' end
local is_special = kind == 'go' and redis.call('EXISTS', breaker, queue_states) > 0
if is_special and state_holds(queue_states, string.match(breaker, '[^:]*$'), lane, 'paused') then return {'paused'} end
if kind == 'go' and turn and not turn_has(base, line, call_id) then return {'behind'} end
if kind == 'go' and bound > 0 and running_take(running, call_id, now, lease_end, bound) == 0 then return {'full'} end
local rest, is_soon, state_of_module = 0, false, ''
if kind == 'go' and (can_reach ~= '1' or (is_special and redis.call('EXISTS', breaker) == 1)) then
  rest, is_soon, state_of_module = breaker_pass(breaker, now, can_reach == '1')
end
if rest > 0 then
  if bound > 0 then redis.call('ZREM', running, call_id) end
  if is_soon or rest <= patience then return {state_of_module == 'half' and 'queued' or 'away', rest} end
  kind = 'open'
end
if kind == 'go' then
  if approval ~= '' then redis.call('HDEL', record, 'may_begin') end
  begun = begun + 1
  if so_far == 'none' then -- nobody has anything of it: any process may
    at, scattered = replica, ''
  elseif at == '' and replica ~= '' then -- an earlier attempt was elsewhere
    at, scattered = replica, '1'
  end
end
local is_accepted = found[14] or kind == 'accepted'
redis.call('HSET', record, 'token', token, 'lease', lease_end, 'begun', begun, 'effect', effect,
  'so_far', so_far, 'log', log, 'as', is_accepted and 'busy' or kind)
if is_accepted then redis.call('HSET', record, 'granted', kind) end
if at ~= '' or found[16] then redis.call('HSET', record, 'replica', at, 'scattered', scattered, 'v', REPLICAS_SINCE) end
if lapsed > 0 then redis.call('HSET', record, 'lapsed', lapsed) end
if turn then -- whoever ends the call passes its turn on, also without an attempt
  redis.call(kind == 'go' and 'HSET' or 'HSETNX', record, 'turn', ends_ms)
  redis.call('HSET', record, 'v', TURNS_SINCE)
  turn_hold(base, line, call_id, ends_ms)
end
redis.call('EXPIRE', record, seconds)
return answered(kind, rest, at, scattered)

-- script: renew(calls(record, running)...;
--   lease_ms, claims(token, call_id, granted, begun, effect, so_far, seconds, replica, scattered)...)
-- Begins leases anew. A record that is not there any more is written anew.
-- granted: what the claim was granted for. so_far: what earlier attempts may have done.
local until_ms, lost = now + lease_ms, {}
for i, claim in ipairs(claims) do
  local record, running = calls[i].record, calls[i].running
  local holder = redis.call('HGET', record, 'token')
  if holder == claim.token then
    redis.call('HSET', record, 'lease', until_ms)
    if running ~= record then running_renew(running, claim.call_id, until_ms) end
  elseif holder or redis.call('EXISTS', record) == 1 then
    lost[#lost + 1] = claim.token
    -- Ended from outside: it has kept its place in the module until its worker hears of it, which is now.
    if not holder and running ~= record then redis.call('ZREM', running, claim.call_id) end
  else
    -- Redis has lost it, and may have kept the call's message, which must not be begun beside ours.
    redis.call('HSET', record, 'token', claim.token, 'lease', until_ms, 'as', claim.granted, 'begun', claim.begun,
      'effect', claim.effect, 'so_far', claim.so_far)
    if claim.granted == 'accepted' then -- as `ledger/claim` writes it
      redis.call('HSET', record, 'as', 'busy', 'granted', 'accepted')
    end
    if claim.replica ~= '' or claim.scattered ~= '' then
      redis.call('HSET', record, 'replica', claim.replica, 'scattered', claim.scattered, 'v', REPLICAS_SINCE)
    end
    redis.call('EXPIRE', record, claim.seconds)
  end
end
return lost

-- script: move(record; token, replica)
-- Has an attempt go to another of its module's processes; nothing was sent yet to that one.
local found = redis.call('HMGET', record, 'token', 'so_far', 'scattered', 'turn')
if found[1] ~= token then return 0 end
local is_scattered, version = found[3] == '1' or (found[2] or 'none') ~= 'none', found[4] and TURNS_SINCE or REPLICAS_SINCE
redis.call('HSET', record, 'replica', replica, 'scattered', is_scattered and '1' or '', 'v', version)
return is_scattered and 2 or 1

-- script: unclaim(record, running, breaker; token, call_id)
-- Gives a claim back of which nothing was made: nothing was sent.
if redis.call('HGET', record, 'token') ~= token then return 0 end
if redis.call('HGET', record, 'as') ~= 'go' then -- an earlier attempt is still open, and must stay so
  redis.call('HSET', record, 'lease', 0)
  return 1
end
redis.call('HINCRBY', record, 'begun', -1)
redis.call('HDEL', record, 'token', 'lease', 'as')
if running ~= record then redis.call('ZREM', running, call_id) end
breaker_spare(breaker)
return 1

-- script: forget(record; token)
-- Takes back a claim that was made as the call's message was taken: nothing was sent, and nobody has begun it before.
return claim_forget(record, token)

-- script: let_go(record, running; token, call_id)
-- Ends a lease at once: nobody is at the call any more, and nobody knows how far it got.
local holder = redis.call('HGET', record, 'token')
if holder == token then redis.call('HSET', record, 'lease', 0) end
if running ~= record and (not holder or holder == token) then redis.call('ZREM', running, call_id) end
return 1

-- script: note(record, running; token, call_id, value, line_end)
-- Keeps what a worker knows of a call whose attempt is over, and that it has not ended yet: it asks the module, whose place
-- it leaves. line_end: the end of the audit line.
if redis.call('HGET', record, 'token') ~= token then return 0 end
redis.call('HSET', record, 'known', value, 'known_line', line_end)
if running ~= record then redis.call('ZREM', running, call_id) end
return 1

-- script: close(record, result, caller_limit, running, breaker;
--   token, call_id, attempt, outcome, away, failures, longest_ms, so_far, last, seconds, signature)
-- An attempt has ended, and another may follow. last: the result of this one; signature: the result's, or ''.
local found = redis.call('HMGET', record, 'token', 'closed', 'log', 'begun', 'state')
if found[2] == token then return 1 end
-- Ended from outside, which leaves it its place.
if running ~= record and found[5] == 'done' then redis.call('ZREM', running, call_id) end
if found[1] ~= token and (found[1] or found[4] or found[5]) then return 0 end
local log = noted(found[3] or '')
trail_ended()
redis.call('HSET', record, 'closed', token, 'closed_at', now, 'begun', attempt, 'so_far', so_far, 'last', last, 'log', log)
redis.call('HDEL', record, 'token', 'lease', 'as', 'accepted', 'ask_at', 'parked', 'granted')
if signature ~= '' then redis.call('HSET', record, 'last_signature', signature) end
redis.call('EXPIRE', record, seconds)
if running ~= record then redis.call('ZREM', running, call_id) end
return 1

-- script: park(record, result, caller_limit, running, breaker;
--   token, call_id, attempt, effect, accepted, wait_ms, outcome, away, failures, longest_ms, seconds)
-- Keeps an attempt open that its module goes on with by itself, and lets go of the call until it comes back to be asked for.
-- accepted: under which handle, with its signature and a space before it if there is one. wait_ms: so long nobody need ask.
-- outcome: of the request that has just ended.
local found = redis.call('HMGET', record, 'parked', 'token', 'state', 'begun', 'accepted', 'replica', 'turn')
local answer = parted(found)
if answer then return answer end
if away ~= '' then breaker_note(breaker, now, tonumber(away), tonumber(failures), tonumber(longest_ms), outcome) end
if found[5] then -- it was asked where the call is
  redis.call('HINCRBY', record, 'polls', 1)
else
  local claimed, worker = held_by(token)
  trail_added('accepted', attempt, claimed, string.match(outcome, ' (%d+)') or 0, now, worker, word(found[6]))
end
set_aside(found[7], 'parked', now + wait_ms, 2, 'accepted', accepted, 'ask_at', now + wait_ms, 'begun', attempt,
  'so_far', 'unknown')
return 1

-- script: ask(record, result, caller_limit, running, breaker;
--   token, call_id, attempt, effect, so_far, question, round, message, accepted, until_ms, channel,
--   outcome, away, failures, longest_ms, seconds)
-- Keeps what a module asks whoever began a call, and lets go of the call until that is answered. It is no attempt any more,
-- unless its module goes on with it by itself.
-- question: what it asks, with its signature and a space before it if there is one. round: which of the call's it is, from 1.
-- message: the call as it travels once it is answered.
-- accepted: under which handle its module goes on with it, with its signature as above, and takes the answer; '' if it is begun
--   again with that.
-- until_ms: its deadline, for workers of the first version. channel: where those are told that follow the call.
-- outcome: `input_required <ms>`.
local found = redis.call('HMGET', record, 'parked', 'token', 'state', 'begun', 'log', 'turn')
local answer = parted(found)
if answer then return answer end
local log = noted(found[5] or '')
local goes_on = accepted ~= ''
local claimed, worker = held_by(token)
trail_added('asked', round, claimed, string.match(outcome, ' (%d+)') or 0, now, worker, replica_of())
set_aside(found[6], 'asked', until_ms, goes_on and ANSWERED_THERE_SINCE or 2, 'question', question, 'round', round,
  'message', message, 'begun', goes_on and attempt or attempt - 1, 'so_far', so_far, 'log', log)
if goes_on then redis.call('HSET', record, 'accepted', accepted) end
announce(record, call_id, channel, 'input_required', 'input_required' .. call_id)
return 1

-- script: answer(record, queue, notify_key; round, digest, message)
-- Takes an answer to what a call asks, once, and puts the call into its queue with it.
-- round: the question's number. digest: the answer's.
-- message: the whole message for its queue, '' if another broker has that: then question and text stay, for whoever
--   must send it again.
local found = redis.call('HMGET', record, 'state', 'token', 'round', 'answered')
if found[1] == 'done' then return 'ended' end
if not found[3] then return redis.call('EXISTS', record) == 1 and 'not_asked' or 'unknown' end
local asked, answered = tonumber(found[3]), found[4] or ''
round = tonumber(round)
local said = string.match(answered, ';' .. round .. ' (%x+)')
if said then return said == digest and 'again' or 'answered' end
if round ~= asked or found[2] ~= 'asked' then return 'not_asked' end
redis.call('HSET', record, 'answered', answered .. ';' .. round .. ' ' .. digest)
redis.call('HDEL', record, 'token', 'lease', 'as', 'granted')
trail_added('answered', round, now)
if message ~= '' then
  redis.call('HDEL', record, 'question', 'message')
  redis.call('LPUSH', queue, message)
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
end
return 'taken'

-- script: recall(record; token)
-- Says, once, under which handle, and in which of its processes, a module goes on with a call that was ended from
-- outside: nobody wants it any more.
local found = redis.call('HMGET', record, 'state', 'accepted', 'recalled', 'replica')
if not found[2] or (found[3] and found[3] ~= token) then return {'none', '', ''} end
if found[1] ~= 'done' then return {'open', '', ''} end
redis.call('HSET', record, 'recalled', token)
return {'recalled', found[2], found[4] or ''}

-- script: finish(dead, dead_order, audit_stream, unacked, unacked_index;
--   record, result, token, call_id, attempt, outcome, away, effect_state, value, announcement, letter, line, tag, caller_limit,
--   breaker, running, intent, time, result_seconds, record_seconds, failures, longest_ms, letters_kept, lines_kept,
--   ends(token, call_id, attempt, outcome, away, effect_state, value, announcement, letter, line, tag, caller_limit, breaker,
--     running, intent)...)
-- The call's one result, from who holds it, and those of others that end with it, each decided by itself: then an answer for
-- each, none for one that has failed, which is sent again alone. effect_state: what has happened.
-- record, result: before calls' ids in the names of those keys. caller_limit, breaker: '' as the call before has them.
-- running, intent: '' for none. token: without the tag before it, where it begins with that.
-- value: for its key, '' where Celery writes it itself. announcement: '' for the value itself; without a value, the result.
-- line: the whole line; or, with `,` before it, the parts of it before and behind what the result says of attempts, and what
--   Celery's value has beside the result, each in a line. Then the value is the result's text, and both are made of it here.
-- time: the second in which they end.
-- tag: of the message that has brought it, which is forgotten with the end; '' where that is not here, or must stay.
local FIELDS_OF_A_CLAIM = 7
local records, results = record, result
local is_quiet, ended_of, tags = {}, {}, {} -- breakers that are not there; calls that count no longer, by their callers' limits

-- Makes Celery's value and the whole line. The result's text ends with what was seen of the call.
local function written_out()
  local head, ts, seen = string.match(value, '.*"audit":{(.-,"ts":([^,]+))(,"attempts":.*)}}$')
  local before, behind, more = string.match(line, '^(.*)\n(.*)\n(.*)$')
  line = '{' .. head .. before .. seen .. behind
  value = '{"status": "SUCCESS", "result": ' .. cjson.encode(value) .. ', "traceback": null, "children": [], "date_done": "'
    .. time .. string.sub(string.format('%.6f', ts), -7) .. '+00:00", "task_id": ' .. cjson.encode(call_id) .. more .. '}'
end

-- So it is with nearly every call: its record is as one claim has written it, its result is small, and nobody else need hear of
-- its end. What is written here, `finished` would write.
local function finished_at_once()
  if outcome == '' or away ~= '0' or effect_state == 'none' or letter ~= '' or value == '' then return end
  local found = #value < COUNTED_FROM_BYTES and redis.call('HGETALL', record) or {}
  if #found ~= 2 * FIELDS_OF_A_CLAIM then return end
  local fields = {}
  for i = 1, #found, 2 do fields[found[i]] = found[i + 1] end
  if is_quiet[breaker] == nil then is_quiet[breaker] = redis.call('EXISTS', breaker) == 0 end
  if fields.token ~= token or not fields.log or not is_quiet[breaker] then return end
  redis.call('HSET', record, 'state', 'done', 'by', token, 'log', fields.log .. attempt .. ' ' .. outcome .. ';')
  redis.call('HDEL', record, 'token', 'lease', 'as')
  redis.call('SET', result, value, 'EX', result_seconds)
  announce(record, call_id, result, announcement == '' and value or announcement)
  redis.call('EXPIRE', record, record_seconds)
  ended_of[caller_limit] = ended_of[caller_limit] or {}
  table.insert(ended_of[caller_limit], call_id)
  if running ~= record then redis.call('ZREM', running, call_id) end
  return audit(audit_stream, lines_kept, line) and 1 or 2
end

local function finish_it()
  record, result = records .. call_id, results .. call_id
  if running == '' then running = record end
  if intent == '' then intent = record end
  if token == '' or string.sub(token, 1, 1) == '~' then token = tag .. token end
  if string.sub(line, 1, 1) == ',' then written_out() end
  local answer = finished_at_once()
  if not answer then
    answer, is_quiet = finished(), {}
  end
  if answer ~= 0 and tag ~= '' then tags[#tags + 1] = tag end
  return answer
end

-- What fails here is told by what it leaves: a place until its deadline; a message that comes again, and finds its call ended.
local function let_go()
  for key, call_ids in pairs(ended_of) do redis.pcall('ZREM', key, unpack(call_ids)) end
  if #tags == 0 then return end
  redis.pcall('ZREM', unacked_index, unpack(tags))
  redis.pcall('HDEL', unacked, unpack(tags))
end

if #ends == 0 then
  local answer = finish_it()
  let_go()
  return answer
end
local is_done, answer = pcall(finish_it)
local answers = {is_done and answer}
for i, one in ipairs(ends) do
  token, call_id, attempt, outcome, away = one.token, one.call_id, one.attempt, one.outcome, one.away
  effect_state, value, announcement, letter = one.effect_state, one.value, one.announcement, one.letter
  line, tag, running, intent = one.line, one.tag, one.running, one.intent
  if one.caller_limit ~= '' then caller_limit, breaker = one.caller_limit, one.breaker end
  is_done, answer = pcall(finish_it)
  answers[i + 1] = is_done and answer
end
let_go()
return answers

-- script: end(record, result, caller_limit, running, breaker, intent, dead, dead_order, audit_stream, data_id;
--   token, call_id, mode, data, result_seconds, record_seconds, unbegun, undone, unknown, letter, letters_kept,
--   line, line_unbegun, line_undone, line_unknown, lines_kept, yields)
-- The call's one result, from outside: its deadline has passed, its caller takes it back, or Celery has ended it.
-- mode: `unbegun` to end it only if no attempt was ever begun; `refused` for the same where each end says that nothing has
--   happened; else `any`.
-- data: which data Redis must have, so that a record that is not there never was: `*` whichever, '' it may have been lost.
-- unbegun, undone, unknown: Celery's values for a call that was never begun, for one whose attempts surely did nothing, and
--   for any other. letter: for the last.
-- line: the beginning of the audit line; line_unbegun and so on: its end for each of the three.
-- yields: '1' if what its worker has noted counts more than `unknown`.
local found = redis.call('HMGET', record, 'state', 'begun', 'token', 'so_far', 'result', 'log', 'as', 'by', 'known',
  'known_line', 'may_begin', 'turn', 'accepted')
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
announce(record, call_id, result, value)
ended(record_seconds, nothing_happened, nothing_happened and '' or letter, tonumber(letters_kept), log)
if found[12] or not begun then -- else it was begun without a turn
  local state = nothing_happened and 'none' or 'unknown'
  pcall(turn_over, string.sub(record, 1, -#call_id - 6), call_id, log, state, found[12], found[13])
end
if is_open then trail_broken('cut', found[2], found[3], now) end
local trail = found[2] and trail_read() or ''
line = line .. ',"attempts":' .. (found[2] or 0) .. trail .. line_end
return {'ended', value, line, audit(audit_stream, lines_kept, line) and 1 or 0}

-- script: ended(results...; most_bytes)
-- Which of these results are stored, for an agent that has heard nothing of their calls: each one's number, from 1, and its value,
-- or '' where the answer would have more than so many bytes.
local found, left = {}, tonumber(most_bytes)
for i, key in ipairs(results) do
  local size = redis.pcall('STRLEN', key) -- fails for a key of another type, which somebody else has written
  if type(size) == 'number' and size > 0 then
    local fits = size <= left
    found[#found + 1] = i
    found[#found + 1] = fits and redis.call('GET', key) or ''
    if fits then left = left - size end
  end
end
return found
