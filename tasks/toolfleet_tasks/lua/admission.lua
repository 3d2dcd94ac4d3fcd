-- Lets calls in, each all at once or not at all. Of the arguments:
-- intent: the idempotency key if it has one. Its value is `<call id> <digest> <deadline> <the server's run id>`. It stands for that
--   call until it expires, or its call ends with nothing done, or the deadline has passed and no worker has ever begun the call.
-- message: '' if it is published otherwise. limit: how many messages may wait in the queue, 0 where that is judged elsewhere.
-- bound: the caller's limit; negative: twice the lane's slots, and so many where none are known.
-- stored: where its caller's stored results are counted.
-- keep_ms: for how long the limit's key must live, 0: as it is. deadline: in s, by the clock of the agent that made the call.
-- intention: with an idempotency key, the digest of what the call would do, with the fleet's time (s) behind it, else ''; kept for
--   intent_seconds.
-- marks: letters: `w` if somebody must consume the queue; `a` if the call may have been let in before, its answer lost: then
--   nothing is done, whatever stands against it by now. It is in its caller's calls from the step that publishes it until its end.
-- include: overload, limits, turns
-- lazily: admission(admitted, is_draining, joins, run_id), overload(slots_sum), storage(stored_bytes)
-- lazily: consumers(unserved_ms), breaker(breaker_rest, breaker_why), queue_states(state_holds)

local RESTART_MS = 2000 -- in its queue a call waits for so long for a module that is away: a restart takes no longer
local READERS_MARGIN_SECONDS = 60
local PUBLISHED_IN_MS = 30000 -- an agent that takes longer for this is gone, or its call comes back to its place in the line
local FORSAKEN_SECONDS = 5 -- after the deadline of a key's call: clocks differ

local digest, asked_at = string.match(intention, '^(%S+) ?(%d*)')

-- Which server this is, `-` where it does not say so. Another one may have had a record that this one has not.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '-'
end

-- Whoever was let in with the key died before the call was published, or no worker has had it, and none will begin it.
local function is_forsaken(holder, until_s, server)
  local now = math.min(redis.call('TIME')[1], tonumber(asked_at) or 0) -- either clock may have been set
  if not tonumber(until_s) or now - FORSAKEN_SECONDS <= tonumber(until_s) then return false end
  local others = string.sub(record, 1, -#call_id - 1) .. holder
  return server ~= '-' and server == run_id() and redis.call('EXISTS', others) == 0
end

-- What is found under a call's idempotency key; nil if the call may be let in. Changes nothing, but for a call that waits for
-- another one's result.
local function joins()
  local found = digest and redis.call('GET', intent)
  if not found then return end
  local holder, same, until_s, server = string.match(found, '^(%S+) (%S+) ?(%S*) ?(%S*)')
  if holder == call_id or is_forsaken(holder, until_s, server) then return end
  if same ~= digest then return {'conflict', holder or ''} end
  -- The text of a result stays for those who wait for it.
  local readers = string.sub(record, 1, -#call_id - 6) .. 'readers:' .. holder
  redis.call('SADD', readers, call_id)
  local seconds = math.max(math.ceil(deadline - redis.call('TIME')[1]), 0) + READERS_MARGIN_SECONDS
  if redis.call('TTL', readers) < seconds then redis.call('EXPIRE', readers, seconds) end
  return {'joined', holder}
end

-- Has an idempotency key stand for the call.
local function intend()
  redis.call('SET', intent, call_id .. ' ' .. digest .. ' ' .. deadline .. ' ' .. run_id(), 'EX', intent_seconds)
end

-- Whether an operator has the call's queue take no new calls.
local function is_draining()
  if redis.call('EXISTS', queue_states) == 0 then return false end
  return state_holds(queue_states, string.match(breaker, '[^:]*$'), string.match(slots, '%a+$'), 'draining')
end

-- Whether there is neither a record of the call, nor a breaker, nor a count of stored results, nor a queue that an operator has
-- paused or drains. So it is nearly always, and one question says it.
local clear
local function is_clear()
  if clear == nil then clear = redis.call('EXISTS', record, breaker, stored .. ':bytes', queue_states) == 0 end
  return clear
end

-- What stands against a call, but for limits and room; nil for nothing. Changes nothing, but for a call that waits for another
-- one's result.
local function stands_against()
  if not is_clear() and redis.call('EXISTS', record) == 1 and not redis.call('HGET', record, 'may_begin') then
    return {'ended', call_id} -- what people have approved has a record before it is published
  end
  local joined = digest and joins()
  if joined then return joined end
  if not is_clear() and is_draining() then return {'draining', 0} end
  if string.find(marks, 'w') then
    -- Who may not read the notes knows nothing, and lets the call in.
    local is_known, ms = pcall(unserved_ms, string.match(slots, '^(.*)slots:%a+$'), queue)
    if is_known and ms >= 0 then return {'unserved', ms} end
  end
  if not is_clear() and redis.call('EXISTS', breaker) == 1 then
    local clock = redis.call('TIME')
    local now_ms = clock[1] * 1000 + clock[2] / 1000
    local rest = breaker_rest(breaker, now_ms)
    if rest > 0 and rest > math.min(RESTART_MS, deadline * 1000 - now_ms) then return {'open', rest, breaker_why(breaker)} end
  end
end

-- What bound stands against a call, nil for nothing. `found_bound`: the caller's limit if it was looked up here.
-- A message that is no larger than its part of the bytes is bounded by the number of those that wait.
local found_bound = 0
local function is_full()
  bound, limit = tonumber(bound), tonumber(limit)
  if bound <= 0 then
    found_bound = 2 * slots_sum(slots, redis.call('TIME')[1] - SLOTS_COUNT_SECONDS)
    if found_bound == 0 then found_bound = -bound end
    bound = found_bound
  end
  local length = limit > 0 and redis.call('LLEN', queue) or 0
  if limit > 0 and length >= limit then return {'backlog', length} end
  if length >= BYTES_FROM_MESSAGES and #message * limit > tonumber(backlog_bytes) then
    local bytes = redis.pcall('MEMORY', 'USAGE', queue, 'SAMPLES', '5') -- not for every user of Redis
    if type(bytes) == 'number' and bytes > tonumber(backlog_bytes) then return {'bytes', bytes} end
  end
  if is_clear() then return end
  local most, bytes = tonumber(stored_bytes_most), tonumber(redis.call('GET', stored .. ':bytes') or 0)
  if bytes > most then
    local clock = redis.call('TIME')
    bytes = stored_bytes(stored, clock[1] * 1000 + math.floor(clock[2] / 1000))
    if bytes > most then return {'stored', bytes} end
  end
end

-- Lets a call in if nothing stands against it; what fails midway is taken back. Of one that counts in limits of its caller's:
-- what refuses it, what has it count, and what takes that back. Of one with a turn: what says whether it waits for that.
local function admitted(limits_refuse_it, count_it, count_it_not, waits_for_turn)
  if string.find(marks, 'a') and redis.call('ZSCORE', caller_limit, call_id) then return 0 end

  local function judged()
    return stands_against() or (limits_refuse_it and limits_refuse_it()) or is_full()
  end

  -- The message comes last: what fails before it can be taken back, and after it nothing can fail.
  local function let_in()
    if caller_take(caller_limit, call_id, deadline, bound, tonumber(keep_ms)) == 0 then return {'share', bound} end
    if count_it then count_it() end
    if digest then intend() end
    local waits = waits_for_turn and waits_for_turn()
    if waits and message == '' then return {'waits'} end
    if message ~= '' and not waits then
      if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
      redis.call('LPUSH', queue, message)
    end
    if string.find(marks, 'w') then return {'served', found_bound} end
    return found_bound
  end

  local is_done, answer = pcall(judged)
  if is_done and not answer then
    is_done, answer = pcall(let_in)
    if not is_done then
      redis.pcall('ZREM', caller_limit, call_id)
      if digest then redis.pcall('DEL', intent) end
      if count_it_not then count_it_not() end
    end
  end
  if is_done then return answer end
  local reason = type(answer) == 'table' and answer.err or tostring(answer)
  return {'failed', (string.gsub(reason, '^@user_script: ?%d+: %-?', ''))}
end

-- What refuses a call for its limits, what has it count in them, and what takes that back.
local function counting()
  local now
  local function limits_refuse_it()
    if redis.call('EXISTS', held) == 1 then return end
    local clock = redis.call('TIME')
    now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    return limits_refuse(limits, terms, now)
  end

  local function count_it()
    if not now then return end
    for i, key in ipairs(limits) do limit_take(key, call_id, terms[i], now, tonumber(until_ms)) end
    local keep = until_ms - now - 1 -- it is gone when the call counts no longer
    if keep > 0 and #limits > 0 then redis.call('SET', held, table.concat(limits, ' '), 'PX', keep) end
  end

  local function count_it_not()
    for _, key in ipairs(limits) do
      redis.pcall('ZREM', key, call_id)
      redis.pcall('ZREM', key .. ':unbegun', call_id)
    end
    redis.pcall('DEL', held)
  end

  return limits_refuse_it, count_it, count_it_not
end

-- script: admit(queue, notify_key, breaker, caller_limit, stored, slots, record, queue_states, intent?;
--   call_id, deadline, message, limit, bound, keep_ms, intent_seconds, intention, backlog_bytes, stored_bytes_most, marks)
-- Lets a call in, and puts its message into its queue. May be sent again, with the same id, if it has no message.

-- So it is with nearly every call: no key, no record of it, a module that is there, no queue that is paused or drains, and room.
-- What is written before it shows that more is to be known, or that something fails, is written again below; the message comes
-- last.
local function admitted_at_once()
  local most = tonumber(bound)
  if intention ~= '' or marks ~= '' or keep_ms ~= '0' or message == '' or most <= 0 then return end
  if redis.call('EXISTS', record, breaker, stored .. ':bytes', queue_states) > 0 then return end
  if limit ~= '0' then
    local length = redis.call('LLEN', queue)
    if length >= tonumber(limit) then return end
    if length >= BYTES_FROM_MESSAGES and #message * limit > tonumber(backlog_bytes) then return end
  end
  redis.call('ZADD', caller_limit, math.ceil(deadline), call_id)
  local count = redis.call('ZCARD', caller_limit)
  if count > most then return end
  if count == 1 then redis.call('PEXPIRE', caller_limit, CALLER_LIMIT_KEPT_SECONDS * 1000) end
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
  redis.call('LPUSH', queue, message)
  return 0
end

local is_done, answer = pcall(admitted_at_once)
if is_done and answer then return answer end
return admitted()

-- script: admit_limited(queue, notify_key, breaker, caller_limit, stored, slots, record, queue_states, intent, held, limits...;
--   call_id, deadline, message, limit, bound, keep_ms, intent_seconds, intention, backlog_bytes, stored_bytes_most, marks,
--   until_ms, terms(most, window, cooldown, kept)...)
-- The same for a call that counts in limits of its caller's, from now on until it ends with nothing done.
-- intent: the record where it has no idempotency key. held: where its limits are noted.
-- until_ms: by the agent's clock; then the call must have begun, or counts no longer. terms: as `limits` has them.
return admitted(counting())

-- script: admit_turn(queue, notify_key, breaker, caller_limit, stored, slots, record, queue_states, intent, held, limits...;
--   call_id, deadline, message, limit, bound, keep_ms, intent_seconds, intention, backlog_bytes, stored_bytes_most, marks,
--   until_ms, base, job_id, line, turn_limit, line_most, now_ms, kept, terms(most, window, cooldown, kept)...)
-- The same for a call that runs when its turn comes. It is in its caller's calls and limits while it waits for that, and in no
-- queue. Returns ['waits'] to whoever would publish it otherwise.
-- job_id, line, turn_limit, now_ms: as `turns` has them. line_most: how many may wait in the queue and in lines for it.
-- kept: its message, if it is published otherwise: then it has a turn that is free only until its agent must have published it.
local turns, waiting = line_keys(base, line)
if message == '' and string.find(marks, 'a') and redis.call('ZSCORE', waiting, call_id) then return {'waits'} end
now_ms = tonumber(now_ms)
local limits_refuse_it, count_it, count_it_not = counting()

local function refuses_it()
  local refusal = limits_refuse_it()
  if refusal or redis.call('ZSCORE', waiting, call_id) or redis.call('ZSCORE', turns, call_id) then return refusal end
  local found = redis.call('HMGET', base .. 'line-load:' .. queue, 'calls', 'bytes')
  local length, bytes = (found[1] or 0) + redis.call('LLEN', queue), tonumber(found[2] or 0)
  if length >= tonumber(line_most) then return {'backlog', length} end
  if bytes > tonumber(backlog_bytes) then return {'bytes', bytes} end
end

local function waits_for_turn()
  local most, deadline_ms = tonumber(turn_limit), math.ceil(deadline * 1000)
  if message == '' then
    local until_ms = math.min(now_ms + PUBLISHED_IN_MS, tonumber(until_ms))
    return line_enter(base, line, call_id, job_id, most, deadline_ms, now_ms, until_ms, queue, 'elsewhere', kept)
  end
  return line_enter(base, line, call_id, job_id, most, deadline_ms, now_ms, tonumber(until_ms), queue, 'here', message)
end

local function take_back()
  count_it_not()
  pcall(turn_end, base, call_id, line)
end

return admitted(refuses_it, count_it, take_back, waits_for_turn)

-- script: admit_many(queue, notify_key, breaker, queue_states, known(record, caller_limit, stored)...;
--   limit, bound, backlog_bytes, calls(call_id, until_s, message)...)
-- Lets calls in, and puts their messages into their one queue, where nothing stands against any of them, as `admit` does at once
-- with one. Else nothing is changed, and each is to be sent alone. until_s: the deadline, in whole seconds.
local questions, callers, messages, longest = {breaker, queue_states}, {}, {}, 0
for i, call in ipairs(calls) do
  local of = known[i]
  local members = callers[of.caller_limit]
  if not members then
    members = {}
    callers[of.caller_limit] = members
    questions[#questions + 1] = of.stored .. ':bytes'
  end
  questions[#questions + 1] = of.record
  members[#members + 1] = call.until_s
  members[#members + 1] = call.call_id
  messages[i] = call.message
  longest = math.max(longest, #call.message)
end
if redis.call('EXISTS', unpack(questions)) > 0 then return false end
if limit ~= '0' then
  local length = redis.call('LLEN', queue) + #calls
  if length > tonumber(limit) then return false end
  if length > BYTES_FROM_MESSAGES and longest * limit > tonumber(backlog_bytes) then return false end
end
local most, counts = tonumber(bound), {}
for caller_limit, members in pairs(callers) do
  counts[caller_limit] = redis.call('ZCARD', caller_limit)
  if counts[caller_limit] + #members / 2 > most then return false end
end
-- A message comes last, so that what fails has let nobody in: what is counted before it is counted again when it is sent alone.
for caller_limit, members in pairs(callers) do
  redis.call('ZADD', caller_limit, unpack(members))
  if counts[caller_limit] == 0 then redis.call('PEXPIRE', caller_limit, CALLER_LIMIT_KEPT_SECONDS * 1000) end
end
if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
redis.call('LPUSH', queue, unpack(messages))
return 0

-- script: retract(caller_limit, held, intent?; call_id)
-- Takes back that a call was let in: it is surely in no queue. May be sent again.
redis.call('ZREM', caller_limit, call_id)
limits_return(held, call_id)
local holder = intent and redis.call('GET', intent)
if holder and string.match(holder, '^%S+') == call_id then redis.call('DEL', intent) end
return 1
