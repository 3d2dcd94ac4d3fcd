"""The scripts that let calls in, and take that back: each all at once, or not at all.

Times are the server's, but for a call's deadline, which is the clock's of the agent that made it.
"""

from toolfleet_tasks.lua.breaker import BREAKER_REST
from toolfleet_tasks.lua.consumers import UNSERVED
from toolfleet_tasks.lua.limits import LIMITS, RETURN
from toolfleet_tasks.lua.overload import SHARE, SLOTS, SLOTS_COUNT_SECONDS
from toolfleet_tasks.lua.script import Script
from toolfleet_tasks.lua.storage import STORED

_BYTES_FROM_MESSAGES = 16  # that wait: fewer are bounded by what one of them may have
_READERS_MARGIN_SECONDS = 60
_FORSAKEN_SECONDS = 5  # after the deadline of a key's call: clocks differ
_PATIENCE_MS = 2000  # in its queue a call waits for so long for a module that is away: a restart takes no longer

_JUDGED = f"""
local id, message, limit, bound, found_bound = ARGV[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), 0
local digest, asked_at
if ARGV[8] ~= '' then digest, asked_at = string.match(ARGV[8], '^(%S+) ?(%d*)') end
local backlog_bytes, stored_most = tonumber(ARGV[9]), tonumber(ARGV[10])

-- Another server than the one that answers now may have had a record that this one has not.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '-'
end

-- Whoever was let in with the key died before the call was published, or no worker has had it, and none will begin it.
local function is_forsaken(holder, deadline, server)
  local now = math.min(redis.call('TIME')[1], tonumber(asked_at) or 0) -- either clock may have been set
  if not tonumber(deadline) or now - {_FORSAKEN_SECONDS} <= tonumber(deadline) then return false end
  local record = string.sub(KEYS[6], 1, -#id - 1) .. holder
  return server ~= '-' and server == run_id() and redis.call('EXISTS', record) == 0
end

-- Changes nothing, but for a call that waits for another one's result.
local function judged()
  if redis.call('EXISTS', KEYS[6]) == 1 then return {{'ended', id}} end
  local intent = digest and redis.call('GET', KEYS[7])
  if intent then
    local holder, same, deadline, server = string.match(intent, '^(%S+) (%S+) ?(%S*) ?(%S*)')
    if holder ~= id and not is_forsaken(holder, deadline, server) then
      if same ~= digest then return {{'conflict', holder or ''}} end
      -- The text of a result stays for those who wait for it.
      local readers = string.sub(KEYS[6], 1, -#id - 6) .. 'readers:' .. holder
      redis.call('SADD', readers, id)
      local seconds = math.max(math.ceil(ARGV[2] - redis.call('TIME')[1]), 0) + {_READERS_MARGIN_SECONDS}
      if redis.call('TTL', readers) < seconds then redis.call('EXPIRE', readers, seconds) end
      return {{'joined', holder}}
    end
  end
  if ARGV[11] == '1' then
    -- Who may not read the notes knows nothing, and lets the call in.
    local is_known, ms = pcall(unserved_ms, string.match(KEYS[5], '^(.*)slots:%a+$'), KEYS[1])
    if is_known and ms >= 0 then return {{'unserved', ms}} end
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    local clock = redis.call('TIME')
    local now_ms = clock[1] * 1000 + clock[2] / 1000
    local rest = breaker_rest(KEYS[3], now_ms)
    if rest > 0 and rest > math.min({_PATIENCE_MS}, ARGV[2] * 1000 - now_ms) then return {{'open', rest}} end
  end
"""

_WITHIN_LIMITS = """
  if redis.call('EXISTS', KEYS[8]) == 0 then
    local clock, most, which, is_daily = redis.call('TIME'), 0, 0, 0
    now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    for i = 9, #KEYS do
      limit_forget(KEYS[i], now)
      local rest, day = limit_rest(KEYS[i], tonumber(ARGV[2 * i - 5]), tonumber(ARGV[2 * i - 4]), now)
      if rest > most then most, which, is_daily = rest, i - 8, day end
    end
    if most > 0 then return {'limited', which, is_daily, most, now} end
  end
"""

_ROOM = f"""
  if bound <= 0 then
    found_bound = 2 * slots_sum(KEYS[5], redis.call('TIME')[1] - {SLOTS_COUNT_SECONDS})
    if found_bound == 0 then found_bound = -bound end
    bound = found_bound
  end
  local length = limit > 0 and redis.call('LLEN', KEYS[1]) or 0
  if limit > 0 and length >= limit then return {{'backlog', length}} end
  if length >= {_BYTES_FROM_MESSAGES} then
    local bytes = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '5') -- not for every user of Redis
    if type(bytes) == 'number' and bytes > backlog_bytes then return {{'bytes', bytes}} end
  end
  local stored = stored_key(KEYS[4])
  local bytes = stored and tonumber(redis.call('GET', stored .. ':bytes') or 0) or 0
  if bytes > stored_most then
    local clock = redis.call('TIME')
    bytes = stored_bytes(stored, clock[1] * 1000 + math.floor(clock[2] / 1000))
    if bytes > stored_most then return {{'stored', bytes}} end
  end
end

-- The message comes last: what fails before it can be taken back, and after it nothing can fail.
local function let_in()
  if share_take(KEYS[4], id, ARGV[2], bound, tonumber(ARGV[6])) == 0 then return {{'share', bound}} end
"""

_TAKE_LIMITS = """
  if now then
    local until_ms, names = tonumber(ARGV[12]), {}
    for i = 9, #KEYS do
      limit_take(KEYS[i], id, tonumber(ARGV[2 * i - 4]), now, until_ms)
      names[i - 8] = KEYS[i]
    end
    local keep = until_ms - now - 1 -- it is gone when the call counts no longer
    if keep > 0 then redis.call('SET', KEYS[8], table.concat(names, ' '), 'PX', keep) end
  end
"""

_PUBLISH = """
  if digest then
    redis.call('SET', KEYS[7], id .. ' ' .. digest .. ' ' .. ARGV[2] .. ' ' .. run_id(), 'EX', ARGV[7])
  end
  if message ~= '' then
    if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], '1') end
    redis.call('LPUSH', KEYS[1], message)
  end
  if ARGV[11] == '1' then return {'served', found_bound} end
  return found_bound
end

local is_done, answer = pcall(judged)
if is_done and not answer then
  is_done, answer = pcall(let_in)
  if not is_done then
    redis.pcall('ZREM', KEYS[4], id)
    if digest then redis.pcall('DEL', KEYS[7]) end
"""

_UNDO_LIMITS = """
    for i = 9, #KEYS do
      redis.pcall('ZREM', KEYS[i], id)
      redis.pcall('ZREM', KEYS[i] .. ':unbegun', id)
    end
    redis.pcall('DEL', KEYS[8])
"""

_ANSWER = """
  end
end
if is_done then return answer end
local reason = type(answer) == 'table' and answer.err or tostring(answer)
return {'failed', (string.gsub(reason, '^@user_script: ?%d+: %-?', ''))}
"""

ADMIT = Script(BREAKER_REST + UNSERVED + SHARE + SLOTS + STORED + _JUDGED + _ROOM + _PUBLISH + _ANSWER)
"""Let a call in, and put its message into its queue. May be sent again, with the same id, if it has no message.

KEYS: queue, bell, its module's breaker, its caller's share, its lane's slots, its record in the ledger, and the idempotency key if
it has one. ARGV: call id, its deadline (s), message ('' if it is published otherwise), how many messages may wait in the queue (0:
that is judged elsewhere), the caller's share (negative: twice the lane's slots, and so many where none are known), for how many ms
its key must live (0: as it is), with an idempotency key the seconds that it is kept, and the digest of what the call would do with the
fleet's time (s) behind it (else 0 and ''), how many bytes may wait in the queue, how many bytes of results its caller may have stored,
and '1' if somebody must consume the queue (else '').

The key's value is `<call id> <digest> <deadline> <the server's run id>`. It stands for that call until it expires, or its call ends
with nothing done, or the deadline has passed and no worker has ever begun the call.

Returns the caller's share if it was looked up, else 0, with 'served' before it where somebody had to consume the queue; or what stands against the call: ['joined' or 'conflict', the call id that
the key stands for], ['unserved', for how many ms nobody has consumed the queue], ['open', ms until the breaker lets one through, if that is long], ['backlog', how many wait], ['bytes', how many bytes wait],
['share', how many it may have], ['stored', how many bytes of its results are stored], ['ended', its id] if it has a record already: this comes late, or ['failed', why]. Then nothing was written, or it was taken back.
"""

_LET_IN_BEFORE = "if redis.call('ZSCORE', KEYS[4], ARGV[1]) then return 0 end\n"

ADMIT_AGAIN = Script(_LET_IN_BEFORE + ADMIT.text)
"""The same for a call that may have been let in already, its answer lost: then nothing is done, whatever stands against it by now.

A call is in its caller's share from the step that publishes it until its end, so that there is no need for another note of it.
"""

ADMIT_LIMITED = Script(
    BREAKER_REST
    + UNSERVED
    + SHARE
    + SLOTS
    + STORED
    + LIMITS
    + "local now\n"
    + _JUDGED
    + _WITHIN_LIMITS
    + _ROOM
    + _TAKE_LIMITS
    + _PUBLISH
    + _UNDO_LIMITS
    + _ANSWER
)
"""The same for a call that counts in limits of its caller's, from now on until it ends with nothing done.

KEYS: the first seven, with the record's in the place of an idempotency key that there is none of, then where its limits are noted,
and the limits. ARGV: the first eleven, until when (ms, the agent's clock) the call must
have begun or counts no longer, then for each limit how many calls a day (0: any number), and its cooldown (ms).

Returns the same, or ['limited', which limit is the last to be free again, 1 if that is for the day's, the ms until then, the
server's time (ms)].
"""

ADMIT_LIMITED_AGAIN = Script(_LET_IN_BEFORE + ADMIT_LIMITED.text)
"""As `ADMIT_AGAIN`."""

RETRACT = Script(
    SHARE
    + RETURN
    + """
share_leave(KEYS[1], ARGV[1])
limits_return(KEYS[2], ARGV[1])
local intent = KEYS[3] and redis.call('GET', KEYS[3])
if intent and string.match(intent, '^%S+') == ARGV[1] then redis.call('DEL', KEYS[3]) end
return 1
"""
)
"""Take back that a call was let in: it is surely in no queue. KEYS: its caller's share, where its limits are noted, its idempotency
key if it has one. ARGV: call id. May be sent again.
"""
