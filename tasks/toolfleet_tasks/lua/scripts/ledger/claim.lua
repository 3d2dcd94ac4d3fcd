-- Asks for a call, and begins an attempt where one may begin.
-- bound: how many calls of its module may run at once, 0 for any number.
-- most_attempts: how often the call may be begun. most_deaths: how many workers may die with it.
-- killed: whether two workers have died with the call: `yes`, `no`, or `lapsed` if the leases that ran out say so.
-- patience_ms: how long the call may wait for a module that is away.
-- can_reach: '1' if this worker can connect to the module, as far as it knows.
-- replica: which of its module's processes the worker would ask; '' where the module has one address.
-- round: which question of the call's the message answers, 0 for none.
-- approval: to what an approval is bound that the call needs; '' for none.
-- queue_states: which queues operators have paused; lane: the call's.
-- keys: record, result, caller_limit, running, breaker, queue_states
-- args: token, call_id, lease_ms, effect, seconds, bound, most_attempts, most_deaths, killed, patience_ms, can_reach, replica
-- args: round, approval, lane
-- include: now
-- lazily: ledger/kept_success(kept_success), breaker/pass(breaker_pass), breaker/state(breaker_state, breaker_why)
-- lazily: ledger/trail_lost(trail_lost)
-- lazily: overload/running(running_take, running_renew, running_leave), queue_states/holds(state_holds)
-- constants: REPLICAS_SINCE, VERSION, LONGEST_WAIT_MS, END_CHECK_MS, PATIENCE_MS

local lease_end = now + lease_ms
-- So it is with nearly every call: nobody has begun it before, nothing is to be known of its module, and no queue is paused.
local is_plain = bound == '0' and approval == '' and killed ~= 'yes' and can_reach == '1'
if is_plain and redis.call('EXISTS', record, breaker, queue_states) == 0 then
  redis.call('HSET', record, 'token', token, 'lease', lease_end, 'begun', 1, 'effect', effect, 'so_far', 'none', 'log', '',
    'as', 'go')
  if replica ~= '' then redis.call('HSET', record, 'replica', replica, 'scattered', '', 'v', REPLICAS_SINCE) end
  redis.call('EXPIRE', record, seconds)
  return {'go', 1, 'none', '', '', 0, '', replica, '', ''}
end
bound, most_attempts, most_deaths = tonumber(bound), tonumber(most_attempts), tonumber(most_deaths)
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
  trail_lost(begun, holder, lease > 0 and math.max(lease - lease_ms, 0) or now)
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
if kind == 'go' and bound > 0 and running_take(running, call_id, now, lease_end, bound) == 0 then return {'full'} end
local rest, is_soon, state_of_module = 0, false, ''
if kind == 'go' and (can_reach ~= '1' or (is_special and redis.call('EXISTS', breaker) == 1)) then
  rest, is_soon, state_of_module = breaker_pass(breaker, now, can_reach == '1')
end
if rest > 0 then
  if bound > 0 then running_leave(running, call_id) end
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
redis.call('EXPIRE', record, seconds)
return answered(kind, rest, at, scattered)
