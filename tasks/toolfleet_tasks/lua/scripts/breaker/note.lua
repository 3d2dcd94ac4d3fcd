-- `breaker_spare(key)`: a call that may have been let in says nothing of the module; another may begin.
-- `breaker_note(key, now, failed, threshold, longest, attempt)`: how a call ended that was sent. `failed` is 1 or 0, `attempt` its
-- line in the log, which ends with the ms that it took. `threshold` failures in a row open the breaker for a pause, which grows
-- up to `longest`. A success closes it, but while it is half-open: then `threshold` of them do, and a failure opens it again.
-- include: breaker/pass
-- constants: FIRST_PAUSE_MS, GROWTH, MEMORY_MS

local function breaker_keep(key, ms)
  redis.call('PEXPIRE', key, math.ceil(ms) + MEMORY_MS)
end

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
