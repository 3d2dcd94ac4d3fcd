"""The ledger's scripts: what may happen to a call's record, each step at once or not at all.

The record is a hash:

- `begun`: attempts begun, this says when they are used up; `effect`: what a repeat would do, fixed at the first claim
- `token`, `lease` (ms): who is at it, and until when nobody else may be; `as`: what the claim was granted for
- `lapsed`: how many open attempts' leases ran out, their workers having died or been cut off
- `closed`: whose attempt ended last; `so_far`: what ended attempts may have done; `last`: what the last one came to, and
  `last_signature`, where the fleet signs
- `log`: `<attempt> <outcome> <ms>;` for each that ended, or was found never closed
- `state`: `done` once the call has its one result; `by`: who ended it; `result`: it, where Celery's own key is not written here
- `known`, `known_line`: Celery's value and the end of the audit line of what its worker knows, which it asks the module about now
- `v`: the version of these fields that whoever claims the call must know, if the first will not do
- `size`: its bytes, if they count for its caller; `had`: what is to stand in its place once those who wait for it have it, too

Every script may be sent again with the same token, when its answer was lost, and then answers the same.

KEYS, the same for all but RENEW: record, Celery's result, the caller's share, the module's running calls, its breaker, the
idempotency key, dead letters, their order, what names the data that Redis has, the audit. Where a call has no such key,
the record's stands in its place.
"""

from toolfleet_tasks.lua.audit import AUDIT
from toolfleet_tasks.lua.breaker import BREAKER, BREAKER_PASS
from toolfleet_tasks.lua.dead_letters import BURY
from toolfleet_tasks.lua.limits import RETURN
from toolfleet_tasks.lua.overload import ROOM, SHARE
from toolfleet_tasks.lua.storage import COUNTED_FROM_BYTES, STORED
from toolfleet_tasks.messages.json_text import VERSION

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_TOLD = """
-- The call's result, if it is still there. When it had been had and was dropped, Celery may have written that it has revoked the call.
local function told(key)
  local value = redis.call('GET', key)
  return value and string.sub(value, 1, 20) == '{"status": "SUCCESS"' and value or ''
end
"""

_ENDED = (
    SHARE
    + BURY
    + AUDIT
    + RETURN
    + """
-- What every call's end does beside the result: it counts no longer, and an intention that came to nothing is open again.
local function ended(id, ttl, nothing_happened, letter, kept, log)
  redis.call('EXPIRE', KEYS[1], ttl)
  if KEYS[3] ~= KEYS[1] then share_leave(KEYS[3], id) end
  if nothing_happened and KEYS[6] ~= KEYS[1] then
    local intent = redis.call('GET', KEYS[6])
    if intent and string.match(intent, '^%S+') == id then redis.call('DEL', KEYS[6]) end
  end
  if nothing_happened then limits_return(string.sub(KEYS[1], 1, -#id - 6) .. 'held:' .. id, id) end -- beside `call:`
  if letter ~= '' then bury(KEYS[7], KEYS[8], id, now, letter, kept, log) end
end
"""
)

CLAIM = (
    _NOW
    + _TOLD
    + BREAKER_PASS
    + ROOM
    + """
local token, id, bound = ARGV[1], ARGV[2], tonumber(ARGV[6])
local found = redis.call('HMGET', KEYS[1], 'state', 'token', 'lease', 'begun', 'effect', 'so_far', 'last', 'log', 'as', 'result',
  'last_signature', 'lapsed', 'v')
"""
    + f"if tonumber(found[13] or 1) > {VERSION} then return {{'newer'}} end"
    + """
local state, holder, lease, begun = found[1], found[2], tonumber(found[3] or 0), tonumber(found[4] or 0)
local effect, so_far, last, log, as = found[5] or ARGV[4], found[6] or 'none', found[7] or '', found[8] or '', found[9]
if found[11] then last = found[11] .. ' ' .. last end
if state == 'done' then
  if KEYS[3] ~= KEYS[1] then redis.call('ZREM', KEYS[3], id) end -- it may have been let in after its end
  return {'done', found[10] or told(KEYS[2])}
end
if holder == token then -- the answer was lost, and the lease may have run out meanwhile
  redis.call('HSET', KEYS[1], 'lease', now + ARGV[3])
  if bound > 0 then room_renew(KEYS[4], id, now + ARGV[3]) end
  return {as, begun, so_far, last, log}
end
if holder and lease > now + ARGV[3] + 1000 then -- Redis's clock was set back: it must not hold for that much longer
  lease = now + ARGV[3]
  redis.call('HSET', KEYS[1], 'lease', lease)
end
if holder and lease > now then return {'busy', lease - now} end
local kind
local lapsed = tonumber(found[12] or 0)
if holder and as ~= 'go' then
  kind = as -- who was to end the call has died
elseif holder then
  log, so_far = log .. begun .. ' never_closed 0;', 'unknown'
  if lease > 0 then lapsed = lapsed + 1 end -- else whoever had it has let it go
  kind = (begun < tonumber(ARGV[7]) and (effect == 'read' or effect == 'idempotent')) and 'go' or 'unknown'
else
  kind = begun < tonumber(ARGV[7]) and 'go' or 'exhausted'
end
local is_killed = ARGV[8] == 'yes' or (ARGV[8] == 'lapsed' and lapsed >= tonumber(ARGV[7]))
if is_killed and (kind == 'go' or kind == 'unknown') then kind = 'killed' end
if kind == 'go' and bound > 0 and room_take(KEYS[4], id, now, now + ARGV[3], bound) == 0 then return {'full'} end
local rest, is_soon, state_of_module = 0, false, ''
if kind == 'go' then rest, is_soon, state_of_module = breaker_pass(KEYS[5], now, ARGV[10] == '1') end
if rest > 0 then
  if bound > 0 then room_leave(KEYS[4], id) end
  if is_soon or rest <= tonumber(ARGV[9]) then return {state_of_module == 'half' and 'queued' or 'away', rest} end
  kind = 'open'
end
if kind == 'go' then begun = begun + 1 end
redis.call('HSET', KEYS[1], 'token', token, 'lease', now + ARGV[3], 'begun', begun, 'effect', effect,
  'so_far', so_far, 'log', log, 'as', kind)
if lapsed > 0 then redis.call('HSET', KEYS[1], 'lapsed', lapsed) end
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {kind, begun, so_far, last, log, rest}
"""
)
"""Ask for a call. ARGV: token, call id, lease (ms), effect, seconds to live, the module's bound (0: none), how many attempts at most, whether
two workers have died with the call (`yes`, `no`, or `lapsed` if that is to be seen from the leases that ran out), for how many ms it may wait for a module that is away, '1' if this worker can connect to the module, as far as it knows.

Returns `done` with the stored result; `busy` with the rest of another's lease (ms); `full`; `away` with the ms that its module is likely to be so, or `queued` if that is back and lets calls in one after the other; or, with attempts begun, what they
may have done, the last one's result (its signature and a space before it, if there is one), the log and the breaker's rest (ms): `go` (an attempt is begun), `unknown` (one was never
closed, and must not be repeated), `exhausted`, `open` or `killed`: the call is to be ended under this token.
"""

RENEW = (
    _NOW
    + ROOM
    + """
local count, until_ms, lost = #KEYS / 2, now + ARGV[1], {}
for i = 1, count do
  local at = 7 * i - 5
  local token, holder = ARGV[at], redis.call('HGET', KEYS[i], 'token')
  if holder == token then
    redis.call('HSET', KEYS[i], 'lease', until_ms)
    if KEYS[count + i] ~= KEYS[i] then room_renew(KEYS[count + i], ARGV[at + 1], until_ms) end
  elseif holder or redis.call('EXISTS', KEYS[i]) == 1 then
    lost[#lost + 1] = token
    -- Ended from outside: it has kept its place in the module until its worker hears of it, which is now.
    if not holder and KEYS[count + i] ~= KEYS[i] then room_leave(KEYS[count + i], ARGV[at + 1]) end
  else
    -- Redis has lost it, and may have kept the call's message, which must not be begun beside ours.
    redis.call('HSET', KEYS[i], 'token', token, 'lease', until_ms, 'as', ARGV[at + 2], 'begun', ARGV[at + 3],
      'effect', ARGV[at + 4], 'so_far', ARGV[at + 5])
    redis.call('EXPIRE', KEYS[i], ARGV[at + 6])
  end
end
return lost
"""
)
"""Begin leases anew. KEYS: the records, then for each its module's running calls, or the record. ARGV: lease (ms), then for each
its token, call id, what it was granted for, attempts begun, effect, what they may have done before, and seconds to live: a
record that is not there any more is written anew. Returns the tokens that hold no longer.
"""

_NOTED = """
if ARGV[4] ~= '' then log = log .. ARGV[3] .. ' ' .. ARGV[4] .. ';' end
if ARGV[5] ~= '' then
  breaker_note(KEYS[5], now, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[4])
elseif ARGV[4] ~= '' then
  breaker_spare(KEYS[5])
end
"""

CLOSE = (
    _NOW
    + BREAKER
    + ROOM
    + """
local found = redis.call('HMGET', KEYS[1], 'token', 'closed', 'log', 'begun', 'state')
local log = found[3] or ''
if found[2] == ARGV[1] then return 1 end
if KEYS[4] ~= KEYS[1] and found[5] == 'done' then room_leave(KEYS[4], ARGV[2]) end -- ended from outside, which leaves it its place
if found[1] ~= ARGV[1] and (found[1] or found[4] or found[5]) then return 0 end
"""
    + _NOTED
    + """
redis.call('HSET', KEYS[1], 'closed', ARGV[1], 'begun', ARGV[3], 'so_far', ARGV[8], 'last', ARGV[9], 'log', log)
redis.call('HDEL', KEYS[1], 'token', 'lease', 'as')
if ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'last_signature', ARGV[11]) end
redis.call('EXPIRE', KEYS[1], ARGV[10])
if KEYS[4] ~= KEYS[1] then room_leave(KEYS[4], ARGV[2]) end
return 1
"""
)
"""An attempt has ended, and another may follow. ARGV: token, call id, attempt, `<outcome> <ms>`, whether the module counts as away
(1 or 0, '' if it was not met), failures and longest pause (ms) of its breaker, what the attempts may have done, its result, seconds to live, the
result's signature or ''. Returns 0 if others have the call by now.
"""

FINISH = (
    _NOW
    + BREAKER
    + ROOM
    + STORED
    + _ENDED
    + """
local found = redis.call('HMGET', KEYS[1], 'token', 'closed', 'log', 'begun', 'state', 'by')
local log = found[3] or ''
if KEYS[4] ~= KEYS[1] and (found[1] == ARGV[1] or found[5] == 'done') then room_leave(KEYS[4], ARGV[2]) end
if found[5] == 'done' then return found[6] == ARGV[1] and 1 or 0 end
-- Without a record Redis has lost it, and nobody else has the call.
if found[1] ~= ARGV[1] and found[2] ~= ARGV[1] and (found[1] or found[4]) then return 0 end
if found[2] == ARGV[1] and found[1] then return 0 end
if not found[2] or found[2] ~= ARGV[1] then
"""
    + _NOTED
    + """
end
redis.call('HSET', KEYS[1], 'state', 'done', 'by', ARGV[1], 'begun', ARGV[3], 'log', log)
redis.call('HDEL', KEYS[1], 'token', 'lease', 'as', 'last', 'last_signature', 'known', 'known_line')
if ARGV[11] == '' then
  redis.call('HSET', KEYS[1], 'result', ARGV[12])
else
  redis.call('SET', KEYS[2], ARGV[11], 'EX', ARGV[9])
  redis.call('PUBLISH', KEYS[2], ARGV[12] == '' and ARGV[11] or ARGV[12])
end
"""
    + f"""
local size = #ARGV[11] + (ARGV[11] == '' and #ARGV[12] or 0)
if size >= {COUNTED_FROM_BYTES} then
  local stored = stored_key(KEYS[3])
  if stored then
    stored_add(stored, ARGV[2], size, now, ARGV[9] * 1000)
    redis.call('HSET', KEYS[1], 'size', size)
  end
end
"""
    + """
ended(ARGV[2], ARGV[10], ARGV[8] == 'none', ARGV[13], tonumber(ARGV[14]), log)
return audit(KEYS[10], ARGV[16], ARGV[15]) and 1 or 2
"""
)
"""The call's one result, from who holds it. ARGV: token, call id, attempts begun, `<outcome> <ms>` ('' without an attempt), whether
the module counts as away ('' if it was not met), failures and longest pause (ms) of its breaker, what has happened (effect state), seconds that the result and
the record live, Celery's value for its key ('' where Celery writes it itself), the announcement ('' for the value; without a
value the result), a dead letter ('' for none), how many of these are kept, the call's audit line, how many of these are kept.
Returns 0 if others have ended the call, and 2 if it has ended so but for its audit line, which could not be written.
"""

END = (
    _NOW
    + _TOLD
    + ROOM
    + _ENDED
    + """
local found = redis.call('HMGET', KEYS[1], 'state', 'begun', 'token', 'so_far', 'result', 'log', 'as', 'by', 'known', 'known_line')
if found[1] == 'done' then
  return {found[8] == ARGV[1] and 'ended' or 'done', found[5] or told(KEYS[2]), '', 1}
end
if ARGV[3] ~= 'any' and found[2] then return {'begun'} end
local begun = tonumber(found[2] or 0) > 0
local is_open = found[3] and found[7] == 'go'
local log = found[6] or ''
if is_open then log = log .. found[2] .. ' never_closed 0;' end
local nothing_happened = not is_open and (found[4] or 'none') == 'none'
local is_whole = ARGV[4] == '*' or ARGV[4] ~= '' and redis.call('GET', KEYS[9]) == ARGV[4]
if not found[2] and not is_whole then nothing_happened = ARGV[3] == 'refused' end
redis.call('HSET', KEYS[1], 'state', 'done', 'by', ARGV[1], 'log', log)
redis.call('HDEL', KEYS[1], 'token', 'lease', 'as', 'last', 'last_signature', 'known', 'known_line')
local which = nothing_happened and (begun and 8 or 7) or 9
local value, line_end = ARGV[which], ARGV[which + 6]
if ARGV[17] == '1' and which == 9 and found[9] then value, line_end = found[9], found[10] end
redis.call('SET', KEYS[2], value, 'EX', ARGV[5])
redis.call('PUBLISH', KEYS[2], value)
ended(ARGV[2], ARGV[6], nothing_happened, nothing_happened and '' or ARGV[10], tonumber(ARGV[11]), log)
local line = ARGV[12] .. ',"attempts":' .. (found[2] or 0) .. line_end
return {'ended', value, line, audit(KEYS[10], ARGV[16], line) and 1 or 0}
"""
)
"""The call's one result, from outside: its deadline has passed, its caller takes it back, or Celery has ended it.

ARGV: token, call id, `unbegun` to end it only if no attempt was ever begun, or `refused` for the same where each end says that nothing
has happened, else `any`, which data Redis must have so that a record that is not there never was (`*` whichever, '' it may
have been lost), seconds that result and record live, Celery's values for a call that was never begun, for one
whose attempts surely did nothing, and for any other, a dead letter for the last, how many of these are kept; the beginning of
the audit line, its end for each of the three, how many lines are kept; '1' if what its worker has noted counts more than the third. Returns `ended` with Celery's value, the audit line
('' if this had been done before) and 1 if that is kept, else 0; `done` with Celery's value (of a call that had ended before,
perhaps the result itself); or `begun`.
"""

LOOK = """
local found = redis.call('HMGET', KEYS[1], 'state', 'token', 'begun')
return found[1] or (found[2] and 'running') or (found[3] and 'retrying') or 'queued'
"""
"""Where a call is: `queued`, `running`, `retrying` or `done`. KEYS: record."""
