"""What happens at once inside Redis with the news of jobs' ends.

News are a hash each (`kind`: continue, notify, call or registry; `body`: JSON; `tries`: how many were begun; `first_at`: since when it is
due, ms; `error`: of the last try; `rest`: for how many ms it was put off last), and an id in a sorted set, by when the next try is due (ms). Those of kind `call` have a
set of their own, its name with `:calls` behind, so that a core that is slow holds up no call; so have events of the registry, for each
receiver of webhooks (`:webhooks:<receiver>`; their ids end with `@<receiver>`). Who tries has a token in the
hash, and a lease: the id's score, until which nobody else does. Dead news are a hash, id -> JSON with all that as text, a
sorted set, id -> when they were given up (ms), and how many bytes all of them have.

Times are the fleet's, as it is known inside Redis: where the server's clock is set, nothing waits for longer, and nobody's lease
ends. Each script that needs them has the fleet's clock as its last key.
"""

from toolfleet_tasks.lua.clock import FLEET_TIME

_NOW = (
    FLEET_TIME
    + """
local now = math.floor(fleet_time(KEYS[#KEYS]) / 1000)
"""
)

WAKES = """
local function due_set(due_key, kind, id)
  if kind == 'call' then return due_key .. ':calls' end
  if kind == 'registry' then return due_key .. ':webhooks:' .. (string.match(id, '@(%x+)$') or '') end
  return due_key
end

local function wake_put(hash_key, due_key, id, now_ms, kind, body)
  if redis.call('EXISTS', hash_key) == 1 then return end
  redis.call('HSET', hash_key, 'kind', kind, 'body', body, 'tries', 0, 'first_at', now_ms)
  redis.call('ZADD', due_set(due_key, kind, id), now_ms, id)
end

local function completion_put(stream_key, id, body, seconds)
  local since = redis.call('TIME')[1] - seconds
  redis.call('XADD', stream_key, 'MINID', '~', string.format('%.0f', math.max(since, 0) * 1000), '*', 'id', id, 'body', body)
  redis.call('XTRIM', stream_key, 'MAXLEN', '~', 1000) -- of a conversation that nobody reads, the latest
  redis.call('EXPIRE', stream_key, seconds)
end
"""
"""`wake_put(hash_key, due_key, id, now_ms, kind, body)`: have news delivered, from now on; those that wait already stay as they are.
`due_key` is `keys.wakes_due`, whatever the kind; `due_set(due_key, kind, id)` is the set for it.

`completion_put(stream_key, id, body, seconds)`: for an agent without HTTP; kept for so long after the last, about 1,000 of them at
most.
"""

MOST_DEAD_BYTES = 100_000_000
"""Of all dead news together: they must leave Redis room for the fleet."""

_DEAD = """
local function dead_drop(dead, order, bytes, id)
  local size = redis.call('HSTRLEN', dead, id)
  redis.call('ZREM', order, id)
  if redis.call('HDEL', dead, id) == 0 then return 0 end
  if redis.call('EXISTS', dead) == 0 then redis.call('DEL', bytes) else redis.call('DECRBY', bytes, size) end
  return 1
end

local function dead_put(dead, order, bytes, id, value)
  dead_drop(dead, order, bytes, id)
  redis.call('HSET', dead, id, value)
  redis.call('ZADD', order, now, id)
  redis.call('INCRBY', bytes, #value)
end
"""

_LOOKED_AT = 100
"""News that wait, those due next first, of which a claim sees whether they wait for longer than they were to."""

CLAIM = (
    _NOW
    + f"""
-- Put off while the clock that was set forward was taken for the time: they wait for as long as they were to from now on.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 1000, '+inf', 'LIMIT', 0, {_LOOKED_AT})) do
  local found = redis.call('HMGET', ARGV[1] .. id, 'rest', 'tries')
  local rest = tonumber(found[1] or nil) or (found[2] == '0' and 0)
  if rest and redis.call('ZSCORE', KEYS[1], id) - now > rest + 1000 then redis.call('ZADD', KEYS[1], now + rest, id) end
end
"""
    + """
local claimed = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[4])) do
  local key = ARGV[1] .. id
  local found = redis.call('HMGET', key, 'kind', 'body', 'tries')
  if found[1] and found[2] then
    redis.call('HSET', key, 'token', ARGV[2], 'rest', ARGV[3])
    redis.call('ZADD', KEYS[1], now + ARGV[3], id)
    claimed[#claimed + 1] = {id, found[1], found[2], redis.call('HINCRBY', key, 'tries', 1)}
  else
    redis.call('ZREM', KEYS[1], id)
    redis.call('DEL', key)
  end
end
return claimed
"""
)
"""Take what is due. KEYS: the ids that are due, the clock. ARGV: what the hashes' names begin with, token, lease (ms), how many at most.

Returns for each, the longest due first: id, kind, body, and the number of this try. Sent again, it takes others; the first ones
come back when their lease is over.
"""

ACCEPTED = """
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
"""
"""Somebody has taken the news: whoever tries it meanwhile need not any more. KEYS: its hash, the ids that are due. ARGV: id.

Returns 1 if it was there.
"""

RELEASED = (
    _NOW
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], 'token')
redis.call('HINCRBY', KEYS[1], 'tries', -1)
return redis.call('ZADD', KEYS[2], now, ARGV[1])
"""
)
"""It was claimed and not tried. KEYS: its hash, the ids that are due, the clock. ARGV: id, token."""

FAILED = (
    _NOW
    + _DEAD
    + """
local found = redis.call('HMGET', KEYS[1], 'token', 'first_at', 'kind', 'body', 'tries')
if found[1] ~= ARGV[2] then return 'lost' end
local rest = (tonumber(found[2]) or now) + ARGV[5] - now
if ARGV[3] ~= '' and rest > 0 then
  local wait = math.min(tonumber(ARGV[3]), rest)
  redis.call('HDEL', KEYS[1], 'token')
  redis.call('HSET', KEYS[1], 'error', ARGV[4], 'rest', wait)
  redis.call('ZADD', KEYS[2], now + wait, ARGV[1])
  return 'later'
end
local body = ARGV[8] ~= '' and ARGV[8] or found[4]
dead_put(KEYS[3], KEYS[4], KEYS[5], ARGV[1], cjson.encode({kind = found[3], body = body, tries = found[5],
  first_at = found[2], died_at = string.format('%.0f', now), error = ARGV[4]}))
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
for _ = 1, 500 do -- after a lower limit the rest goes by and by
  local bytes = tonumber(redis.call('GET', KEYS[5])) or 0
  if redis.call('ZCARD', KEYS[4]) <= tonumber(ARGV[6]) and bytes <= tonumber(ARGV[7]) then break end
  local oldest = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if not oldest or oldest == ARGV[1] then break end
  dead_drop(KEYS[3], KEYS[4], KEYS[5], oldest)
end
return 'dead'
"""
)
"""A try has failed. KEYS: its hash, the ids that are due, the dead news, their order, their bytes, the clock. ARGV: id, token, ms until the
next try ('': there is none), why, ms after `first_at` at which it is given up, how many dead ones are kept, of how many bytes, the body
that is kept of it when it is dead ('': as it is).

The last try is made just when it would be given up. Returns `later`; `dead`; or `lost`: others have it, or have delivered it.
"""

REPLAY = (
    _NOW
    + WAKES
    + _DEAD
    + """
local kept = redis.call('HGET', KEYS[1], ARGV[1])
if not kept then -- it waits, if it is there: it is tried now
  local due = due_set(KEYS[5], redis.call('HGET', KEYS[4], 'kind'), ARGV[1])
  return redis.call('ZADD', due, 'XX', 'CH', now, ARGV[1])
end
local is_read, dead = pcall(cjson.decode, kept)
if not is_read or type(dead) ~= 'table' or type(dead.kind) ~= 'string' or type(dead.body) ~= 'string' then return -1 end
if dead.kind == 'call' and string.find(dead.body, '"is_secret":true', 1, true) then return -2 end
wake_put(KEYS[4], KEYS[5], ARGV[1], now, dead.kind, dead.body)
return dead_drop(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
"""
)
"""Have dead news delivered after all, under the same id. KEYS: the dead news, their order, their bytes, its hash-to-be, the ids that are
due, the clock. ARGV: id.

News that wait for their next try have it now. Returns 1; 0 if there are none of this id; -1 if they cannot be read; -2 for a call whose arguments were not kept.
"""

DROP = (
    _DEAD
    + """
return dead_drop(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
"""
)
"""Forget dead news. KEYS: the dead news, their order, their bytes. ARGV: id. Returns 1 if they were there."""
