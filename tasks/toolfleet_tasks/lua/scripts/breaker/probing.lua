-- `breaker_unreached(key, now, worker, live, longest, why)`: a worker cannot connect. The breaker opens when none of the `live`
-- ones can. Returns for how many ms it is open, or 0. `breaker_reached(key, worker)`: it can again.
-- `breaker_ask(key, now, worker, probe_ms, has_others)`: what a worker shall do: look whether the module is there (`probe`), wait
-- for so many ms (`open`), or nothing (`closed`, `half`). Who has looked last lets others go first, if there are any.
-- A half-open breaker is for calls to close, or to open again. While there are none, looks do.
-- `breaker_probed(key, now, worker, verdict, longest, bearable)`: what it saw: `well`, `away`, `unready` if it says that it
-- cannot serve now (after `bearable` ms of that it is tried), or `none` if it could not look. Returns as `breaker_unreached`.
-- include: breaker/note
-- constants: TOKENS, DEFERENCE_MS, FRESH_MS, GLANCE_MS, YOUNG_MS

local function breaker_unreached(key, now, worker, live, longest, why)
  redis.call('HSETNX', key, 'failures', 0)
  redis.call('HSET', key, 'by:' .. worker, now)
  local kind, rest = breaker_state(key, now)
  if kind == 'open' or kind == 'due' then return math.max(rest, 1) end
  for _, name in ipairs(live) do
    local at = tonumber(redis.call('HGET', key, 'by:' .. name) or nil)
    if not at or at > now or now - at > math.max(FRESH_MS, 3 * longest) then
      breaker_keep(key, longest)
      return 0
    end
  end
  if why and why ~= '' then redis.call('HSET', key, 'why', why) end
  return breaker_open(key, now, longest)
end

local function breaker_reached(key, worker)
  redis.call('HDEL', key, 'by:' .. worker)
  if redis.call('HGET', key, 'failures') == '0' and redis.call('HLEN', key) == 1 then redis.call('DEL', key) end
end

-- Whether no call was let in for so long that none waits: one would have been, each pause.
local function breaker_is_quiet(key, now)
  local state = redis.call('HMGET', key, 'half_at', 'let_in_at', 'pause')
  local since = math.max(tonumber(state[1] or nil) or 0, tonumber(state[2] or nil) or 0)
  return now - since >= YOUNG_MS + (tonumber(state[3] or nil) or 0)
end

local function breaker_ask(key, now, worker, probe_ms, has_others)
  local kind, rest = breaker_state(key, now)
  if kind == 'half' and breaker_is_quiet(key, now) and now >= (tonumber(redis.call('HGET', key, 'probe_until') or nil) or 0) then
    redis.call('HSET', key, 'probe', worker, 'probe_until', now + probe_ms)
    return 'probe', 0
  end
  if kind ~= 'due' then return kind, rest end
  local state = redis.call('HMGET', key, 'open_until', 'probe', 'failed_by')
  if rest > 0 and rest <= probe_ms and state[2] ~= worker then return 'open', math.min(rest, GLANCE_MS) end
  local due_at = tonumber(state[1])
  local others_until = due_at + DEFERENCE_MS
  if has_others and state[3] == worker and due_at <= now and now < others_until then
    return 'open', math.ceil(others_until - now)
  end
  redis.call('HSET', key, 'probe', worker, 'probe_until', now + probe_ms)
  breaker_keep(key, probe_ms)
  return 'probe', 0
end

-- For how long the module has said so, to whomever: it may be tried nevertheless.
local function breaker_unready(key, now, bearable)
  local since = tonumber(redis.call('HGET', key, 'unready_since') or nil)
  if not since or since > now then since = now end
  redis.call('HSET', key, 'unready_since', since)
  return now - since >= bearable and 'well' or 'away'
end

local function breaker_probed(key, now, worker, verdict, longest, bearable)
  if redis.call('HGET', key, 'probe') ~= worker then return 0 end
  if breaker_state(key, now) == 'half' then
    redis.call('HDEL', key, 'probe', 'probe_until')
    if not breaker_is_quiet(key, now) then return 0 end -- calls are there by now
    if verdict == 'well' then redis.call('DEL', key) end
    return verdict == 'away' and breaker_open(key, now, longest) or 0
  end
  if verdict == 'unready' then
    verdict = breaker_unready(key, now, bearable)
    redis.call('HSET', key, 'why', 'unready')
  elseif verdict ~= 'none' then
    redis.call('HDEL', key, 'unready_since')
  end
  redis.call('HDEL', key, 'probe', 'probe_until')
  redis.call('HSET', key, 'failed_by', worker)
  if verdict == 'away' then
    redis.call('HSET', key, 'by:' .. worker, now)
    return breaker_open(key, now, longest)
  elseif verdict == 'well' then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      if string.sub(field, 1, 3) == 'by:' or field == 'failed_by' then redis.call('HDEL', key, field) end
    end
    local tokens = redis.call('HEXISTS', key, 'relapsed') == 1 and 1 or TOKENS
    redis.call('HSET', key, 'half_at', now, 'tokens', tokens, 'let_in_at', now, 'open_until', now)
    redis.call('HSETNX', key, 'pause', longest)
    breaker_keep(key, longest)
  end
  return 0
end
