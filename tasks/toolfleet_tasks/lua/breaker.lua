-- A module's breaker: a hash that is there while calls fail, or workers cannot connect.
-- include: clock

-- What it is, for how long, as far as is known, and whether more will be known soon: `closed`; `half`, 0 if a call may
-- begin; `open`; `due`. Then its failures, and since when it is half-open.
local function breaker_state(key, now)
  if redis.call('EXISTS', key) == 0 then return 'closed', 0, false end -- so it is nearly always
  local state = redis.call('HMGET', key, 'open_until', 'half_at', 'probe_until', 'tokens', 'let_in_at', 'pause', 'failures')
  local open_until, half_at, failures = tonumber(state[1] or nil), tonumber(state[2] or nil), state[7]
  if not open_until then return 'closed', 0, false, failures end
  if half_at and open_until <= half_at then -- workers that know of no half-open breaker open it again so
    local let_in_at = tonumber(state[5] or 0)
    local is_free = tonumber(state[4] or 0) > 0 or let_in_at > now
    local rest = is_free and 0 or let_in_at + tonumber(state[6] or 0) - now
    return 'half', math.max(math.ceil(rest), 0), half_at <= now and now < half_at + YOUNG_MS, failures, half_at
  end
  if open_until > now and open_until <= now + tonumber(state[6] or MEMORY_MS) then
    return 'open', math.ceil(open_until - now), false, failures
  end
  return 'due', math.max(math.ceil(tonumber(state[3] or 0) - now), 0), true, failures
end

-- The ms until a call may begin, about; 0 for now. Changes nothing.
local function breaker_rest(key, now)
  local _, rest, is_soon = breaker_state(key, now)
  return is_soon and math.min(rest, GLANCE_MS) or rest
end

-- Why it was opened: as it was noted, else `failed` if calls have failed, or `away`.
local function breaker_why(key)
  local noted = redis.call('HMGET', key, 'why', 'failures')
  return noted[1] or ((tonumber(noted[2] or nil) or 0) > 0 and 'failed' or 'away')
end

-- The same as `breaker_rest`, for a call that begins now; then whether more will be known at once, so that it should wait; and the
-- breaker's state. `can_reach`: whether the worker can connect to the module, as far as it knows.
local function breaker_pass(key, now, can_reach)
  local kind, rest, is_soon = breaker_state(key, now)
  if kind == 'due' or (kind ~= 'open' and not can_reach) then return GLANCE_MS, true, kind end
  if kind ~= 'half' then return rest, false, kind end
  if rest > 0 then return is_soon and math.min(rest, GLANCE_MS) or rest, is_soon, kind end
  if tonumber(redis.call('HGET', key, 'tokens')) > 0 then redis.call('HINCRBY', key, 'tokens', -1) end
  redis.call('HSET', key, 'let_in_at', now)
  return 0, false, kind
end

local function breaker_keep(key, ms)
  redis.call('PEXPIRE', key, math.ceil(ms) + MEMORY_MS)
end

-- A call that may have been let in says nothing of the module; another may begin.
local function breaker_spare(key)
  if redis.call('HEXISTS', key, 'half_at') == 1 then redis.call('HINCRBY', key, 'tokens', 1) end
end

local function breaker_open(key, now, longest)
  local pause = tonumber(redis.call('HGET', key, 'pause') or nil)
  pause = math.min(pause and pause * GROWTH or FIRST_PAUSE_MS, longest)
  redis.call('HSET', key, 'open_until', now + pause, 'pause', pause)
  redis.call('HDEL', key, 'half_at', 'tokens', 'let_in_at', 'passed', 'probe', 'probe_until')
  breaker_keep(key, pause)
  return math.ceil(pause)
end

-- How a call ended that was sent. `failed` is 1 or 0, `attempt` its line in the log, which ends with the ms that it took.
-- `threshold` failures in a row open the breaker for a pause, which grows up to `longest`. A success closes it, but while it is
-- half-open: then `threshold` of them do, and a failure opens it again.
local function breaker_note(key, now, failed, threshold, longest, attempt)
  local kind, _, _, failures, half_at = breaker_state(key, now)
  if failed == 0 then
    if kind == 'closed' and not failures then return end
    if kind ~= 'half' or redis.call('HINCRBY', key, 'passed', 1) >= threshold then
      redis.call('DEL', key)
    else
      redis.call('HINCRBY', key, 'tokens', 2)
    end
    return
  end
  -- Calls that began before it opened may fail until much later, and say nothing new.
  if kind == 'half' and half_at <= now and now - (tonumber(string.match(attempt, '%d+$')) or 0) < half_at then return end
  failures = redis.call('HINCRBY', key, 'failures', 1)
  if kind == 'half' or (kind == 'closed' and failures >= threshold) then
    if kind == 'half' then redis.call('HSET', key, 'relapsed', 1) end
    redis.call('HDEL', key, 'why')
    breaker_open(key, now, longest)
  elseif kind == 'closed' then
    breaker_keep(key, longest)
  end
end

-- Whether no call was let in for so long that none waits: one would have been, each pause.
local function breaker_is_quiet(key, now)
  local state = redis.call('HMGET', key, 'half_at', 'let_in_at', 'pause')
  local since = math.max(tonumber(state[1] or nil) or 0, tonumber(state[2] or nil) or 0)
  return now - since >= YOUNG_MS + (tonumber(state[3] or nil) or 0)
end

-- script: unreached(breaker; worker, longest_ms, why, live...)
-- A worker cannot connect to a module. The breaker opens when none of the `live` workers can. Returns for how many ms it is open,
-- or 0. why: '' if that is not known.
local longest = tonumber(longest_ms)
redis.call('HSETNX', breaker, 'failures', 0)
redis.call('HSET', breaker, 'by:' .. worker, now)
local kind, rest = breaker_state(breaker, now)
if kind == 'open' or kind == 'due' then return math.max(rest, 1) end
for _, name in ipairs(live) do
  local at = tonumber(redis.call('HGET', breaker, 'by:' .. name) or nil)
  if not at or at > now or now - at > math.max(FRESH_MS, 3 * longest) then
    breaker_keep(breaker, longest)
    return 0
  end
end
if why ~= '' then redis.call('HSET', breaker, 'why', why) end
return breaker_open(breaker, now, longest)

-- script: reached(breaker; worker)
-- A worker can connect to a module again.
redis.call('HDEL', breaker, 'by:' .. worker)
if redis.call('HGET', breaker, 'failures') == '0' and redis.call('HLEN', breaker) == 1 then redis.call('DEL', breaker) end

-- script: ask(breaker; worker, probe_ms, has_others)
-- What a worker shall do about a module: look whether it is there (`probe`), for `probe_ms` at most, wait for so many ms (`open`),
-- or nothing (`closed`, `half`). Who has looked last lets others go first, if other workers live: `has_others` is then '1'.
-- A half-open breaker is for calls to close, or to open again. While there are none, looks do.
probe_ms = tonumber(probe_ms)
local kind, rest = breaker_state(breaker, now)
local is_quiet = kind == 'half' and breaker_is_quiet(breaker, now)
if is_quiet and now >= (tonumber(redis.call('HGET', breaker, 'probe_until') or nil) or 0) then
  redis.call('HSET', breaker, 'probe', worker, 'probe_until', now + probe_ms)
  return {'probe', 0}
end
if kind ~= 'due' then return {kind, rest} end
local state = redis.call('HMGET', breaker, 'open_until', 'probe', 'failed_by')
if rest > 0 and rest <= probe_ms and state[2] ~= worker then return {'open', math.min(rest, GLANCE_MS)} end
local due_at = tonumber(state[1])
local others_until = due_at + DEFERENCE_MS
if has_others == '1' and state[3] == worker and due_at <= now and now < others_until then
  return {'open', math.ceil(others_until - now)}
end
redis.call('HSET', breaker, 'probe', worker, 'probe_until', now + probe_ms)
breaker_keep(breaker, probe_ms)
return {'probe', 0}

-- script: probed(breaker; worker, verdict, longest_ms, bearable_ms)
-- What a worker saw of a module: `well`, `away`, `unready` if it says that it cannot serve now (after `bearable_ms` of that it is
-- tried), or `none` if it could not look. Returns for how many ms the breaker is open, or 0.
local longest = tonumber(longest_ms)
if redis.call('HGET', breaker, 'probe') ~= worker then return 0 end
if breaker_state(breaker, now) == 'half' then
  redis.call('HDEL', breaker, 'probe', 'probe_until')
  if not breaker_is_quiet(breaker, now) then return 0 end -- calls are there by now
  if verdict == 'well' then redis.call('DEL', breaker) end
  return verdict == 'away' and breaker_open(breaker, now, longest) or 0
end
if verdict == 'unready' then
  local since = tonumber(redis.call('HGET', breaker, 'unready_since') or nil)
  if not since or since > now then since = now end
  redis.call('HSET', breaker, 'unready_since', since)
  verdict = now - since >= tonumber(bearable_ms) and 'well' or 'away' -- after so long, said to whomever, it may be tried
  redis.call('HSET', breaker, 'why', 'unready')
elseif verdict ~= 'none' then
  redis.call('HDEL', breaker, 'unready_since')
end
redis.call('HDEL', breaker, 'probe', 'probe_until')
redis.call('HSET', breaker, 'failed_by', worker)
if verdict == 'away' then
  redis.call('HSET', breaker, 'by:' .. worker, now)
  return breaker_open(breaker, now, longest)
elseif verdict == 'well' then
  for _, field in ipairs(redis.call('HKEYS', breaker)) do
    if string.sub(field, 1, 3) == 'by:' or field == 'failed_by' then redis.call('HDEL', breaker, field) end
  end
  local tokens = redis.call('HEXISTS', breaker, 'relapsed') == 1 and 1 or TOKENS
  redis.call('HSET', breaker, 'half_at', now, 'tokens', tokens, 'let_in_at', now, 'open_until', now)
  redis.call('HSETNX', breaker, 'pause', longest)
  breaker_keep(breaker, longest)
end
return 0

-- script: failing(breakers...)
-- The breakers that have seen failures.
local found = {}
for i, key in ipairs(breakers) do
  local kind, rest, _, failures = breaker_state(key, now)
  if kind ~= 'closed' or (failures and failures ~= '0') then
    found[#found + 1] = {i, kind, rest, failures or '0', breaker_why(key)}
  end
end
return found
