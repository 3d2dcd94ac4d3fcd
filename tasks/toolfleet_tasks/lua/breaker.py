"""A module's circuit breaker in Redis: closed, open while the module is away, half-open while it comes back.

The text defines local functions and nothing else, to stand before a script that calls them. The breaker is a hash:

- `failures`: calls in a row that were sent and not answered; `by:<worker>`: when a worker last found that it cannot connect
- `open_until` (ms): nobody begins a call before; when it is over, one process looks whether the module is there: `probe`, which
  has until `probe_until` for that; `failed_by`: who has looked last, in vain; `pause` (ms): how long it was left alone the last time
- `unready_since`: since when it says, whenever it is looked at, that it cannot serve now
- `half_at`: since when it is half-open; `tokens`: how many calls may begin now; `let_in_at`: when the last one did; `passed`: how
  many were answered since; `relapsed`: that one was not, and had it open again

Times are the server's, in ms, and handed in. Where its clock was set back, a time lies further ahead than it can: nothing is
waited for then. The hash expires when its failures are long ago.
"""

FIRST_PAUSE_MS, GROWTH = 1000, 1.5
"""How long a module is left alone at first, and how much longer each time. A restart takes a second or two."""

TOKENS = 4
"""So many calls begin at once when a module has come back; each that is answered lets two more in."""

YOUNG_MS, GLANCE_MS = 5000, 100
"""So long after a module has come back, calls wait for their turn, and ask again after so long."""

DEFERENCE_MS = 400
"""So long whoever has looked last in vain lets others go first: it may be its own trouble."""

FRESH_MS = 30_000
"""So long at least it counts that a worker could not connect. It must exceed the time between two looks of a worker's."""

MEMORY_MS = 600_000
"""Failures that are longer ago say nothing of now."""

BREAKER_REST = f"""
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
    return 'half', math.max(math.ceil(rest), 0), half_at <= now and now < half_at + {YOUNG_MS}, failures, half_at
  end
  if open_until > now and open_until <= now + tonumber(state[6] or {MEMORY_MS}) then return 'open', math.ceil(open_until - now), false, failures end
  return 'due', math.max(math.ceil(tonumber(state[3] or 0) - now), 0), true, failures
end

local function breaker_rest(key, now)
  local _, rest, is_soon = breaker_state(key, now)
  return is_soon and math.min(rest, {GLANCE_MS}) or rest
end
"""
"""`breaker_rest(key, now)`: the ms until a call may begin, about; 0 for now. Changes nothing."""

BREAKER_PASS = (
    BREAKER_REST
    + f"""
local function breaker_pass(key, now, can_reach)
  local kind, rest, is_soon = breaker_state(key, now)
  if kind == 'due' or (kind ~= 'open' and not can_reach) then return {GLANCE_MS}, true, kind end
  if kind ~= 'half' then return rest, false, kind end
  if rest > 0 then return is_soon and math.min(rest, {GLANCE_MS}) or rest, is_soon, kind end
  if tonumber(redis.call('HGET', key, 'tokens')) > 0 then redis.call('HINCRBY', key, 'tokens', -1) end
  redis.call('HSET', key, 'let_in_at', now)
  return 0, false, kind
end
"""
)
"""And `breaker_pass(key, now, can_reach)`: the same for a call that begins now, whether more will be known at once, so that it should
wait, and the breaker's state. `can_reach`: whether the worker can connect to the module, as far as it knows.
"""

BREAKER = (
    BREAKER_PASS
    + f"""
local function breaker_keep(key, ms)
  redis.call('PEXPIRE', key, math.ceil(ms) + {MEMORY_MS})
end

local function breaker_spare(key)
  if redis.call('HEXISTS', key, 'half_at') == 1 then redis.call('HINCRBY', key, 'tokens', 1) end
end

local function breaker_open(key, now, longest)
  local pause = tonumber(redis.call('HGET', key, 'pause') or nil)
  pause = math.min(pause and pause * {GROWTH} or {FIRST_PAUSE_MS}, longest)
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
    breaker_open(key, now, longest)
  elseif kind == 'closed' then
    breaker_keep(key, longest)
  end
end
"""
)
"""All of it. `breaker_spare(key)`: a call that may have been let in says nothing of the module; another may begin.
`breaker_note(key, now, failed, threshold, longest, attempt)`: how a call ended that was sent; `failed` is 1 or 0, `attempt` its line
in the log, which ends with the ms that it took. `threshold` failures in a row open the breaker for a pause, which grows up to `longest`. A success closes it, but while it is
half-open: then `threshold` of them do, and a failure opens it again.
"""

PROBING = f"""
local function breaker_unreached(key, now, worker, live, longest)
  redis.call('HSETNX', key, 'failures', 0)
  redis.call('HSET', key, 'by:' .. worker, now)
  local kind, rest = breaker_state(key, now)
  if kind == 'open' or kind == 'due' then return math.max(rest, 1) end
  for _, name in ipairs(live) do
    local at = tonumber(redis.call('HGET', key, 'by:' .. name) or nil)
    if not at or at > now or now - at > math.max({FRESH_MS}, 3 * longest) then
      breaker_keep(key, longest)
      return 0
    end
  end
  return breaker_open(key, now, longest)
end

local function breaker_reached(key, worker)
  redis.call('HDEL', key, 'by:' .. worker)
  if redis.call('HGET', key, 'failures') == '0' and redis.call('HLEN', key) == 1 then redis.call('DEL', key) end
end

local function breaker_ask(key, now, worker, probe_ms, has_others)
  local kind, rest = breaker_state(key, now)
  if kind ~= 'due' then return kind, rest end
  local state = redis.call('HMGET', key, 'open_until', 'probe', 'failed_by')
  if rest > 0 and rest <= probe_ms and state[2] ~= worker then return 'open', math.min(rest, {GLANCE_MS}) end
  local due_at = tonumber(state[1])
  local others_until = due_at + {DEFERENCE_MS}
  if has_others and state[3] == worker and due_at <= now and now < others_until then return 'open', math.ceil(others_until - now) end
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
  if verdict == 'unready' then
    verdict = breaker_unready(key, now, bearable)
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
    local tokens = redis.call('HEXISTS', key, 'relapsed') == 1 and 1 or {TOKENS}
    redis.call('HSET', key, 'half_at', now, 'tokens', tokens, 'let_in_at', now, 'open_until', now)
    redis.call('HSETNX', key, 'pause', longest)
    breaker_keep(key, longest)
  end
  return 0
end
"""
"""Stands behind `BREAKER`.

`breaker_unreached(key, now, worker, live, longest)`: a worker cannot connect. The breaker opens when none of the `live` ones can.
Returns for how many ms it is open, or 0. `breaker_reached(key, worker)`: it can again.
`breaker_ask(key, now, worker, probe_ms, has_others)`: what a worker shall do: look whether the module is there (`probe`), wait for so
many ms (`open`), or nothing (`closed`, `half`). Who has looked last lets others go first, if there are any.
`breaker_probed(key, now, worker, verdict, longest, bearable)`: what it saw: `well`, `away`, `unready` if it says that it cannot serve
now (after `bearable` ms of that it is tried), or `none` if it could not look. Returns as `breaker_unreached`.
"""

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

UNREACHED = (
    _NOW + BREAKER + PROBING + "return breaker_unreached(KEYS[1], now, ARGV[1], {unpack(ARGV, 3)}, tonumber(ARGV[2]))"
)
"""KEYS: a module's breaker; so below. ARGV: worker, the longest pause (ms), the live workers."""

REACHED = BREAKER + PROBING + "return breaker_reached(KEYS[1], ARGV[1])"
"""ARGV: worker."""

ASK = _NOW + BREAKER + PROBING + "return {breaker_ask(KEYS[1], now, ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1')}"
"""ARGV: worker, how long it may look (ms), '1' if there are others. Returns what to do, and for how many ms."""

PROBED = (
    _NOW
    + BREAKER
    + PROBING
    + "return breaker_probed(KEYS[1], now, ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))"
)
"""ARGV: worker, verdict, the longest pause (ms), how long it may say that it is not ready (ms)."""
