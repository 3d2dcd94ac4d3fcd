-- `breaker_rest(key, now)`: the ms until a call may begin, about; 0 for now. Changes nothing.
-- `breaker_why(key)`: why it was opened: as it was noted, else `failed` if calls have failed, or `away`.
-- constants: YOUNG_MS, GLANCE_MS, MEMORY_MS

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

local function breaker_rest(key, now)
  local _, rest, is_soon = breaker_state(key, now)
  return is_soon and math.min(rest, GLANCE_MS) or rest
end

local function breaker_why(key)
  local noted = redis.call('HMGET', key, 'why', 'failures')
  return noted[1] or ((tonumber(noted[2] or nil) or 0) > 0 and 'failed' or 'away')
end
