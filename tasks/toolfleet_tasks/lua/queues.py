"""The scripts of queues and leases: what must happen at once inside Redis, or not at all.

Most are sent as text each time (`EVAL`): they are short, and so survive restarts, fail-overs and SCRIPT FLUSH. Commands of
Redis 6.2 only. Times are the server's, so that machines whose clocks differ do not take each other's calls for lost.

A message that a worker holds stands in two of kombu's keys: the hash `unacked`, by its tag, as the JSON text
`[<message>,"","<queue>"]`, and the sorted set `unacked_index`, by the time when its lease began. A *bell* is a list of at
most one token beside each queue: the queue may hold something, and nobody is at it. Losing a token loses no message.
"""

from toolfleet_tasks.lua.overload import ROOM

PUBLISH = """
local length = redis.call('LPUSH', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], '1') end
return length
"""
"""Put a message into a queue and ring its bell. KEYS: queue, bell. ARGV: message. Returns the queue's length."""

PUBLISH_BELOW = (
    """
local length = redis.call('LLEN', KEYS[1])
if length >= tonumber(ARGV[2]) then return {'backlog', length} end
"""
    + PUBLISH
)
"""`PUBLISH`, unless so many messages wait already: then ['backlog', how many]. ARGV: message, limit."""

_NOW = """
local clock = redis.call('TIME')
local now = string.format('%d.%06d', clock[1], clock[2])
"""

RESERVE = (
    _NOW
    + ROOM
    + """
-- Wrong types must show before anything is taken: a script that fails is not undone.
redis.call('HLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
local wanted, tag, prefix = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local bounded = math.max(#ARGV - 4, 0) / 2
local queues = (#KEYS - 2 - bounded) / 2
local left, count, rest, bounds, running = {}, 0, {}, {}, {}
local found = {left}
for i = 1, bounded do
  local queue = tonumber(ARGV[3 + 2 * i])
  bounds[queue], running[queue] = tonumber(ARGV[4 + 2 * i]), KEYS[#KEYS - bounded + i]
end

-- Takes messages for which there is room, and says whether there is more in the queue, but no room for it.
local function pop_bounded(i, share)
  local items, now_ms = {}, clock[1] * 1000 + math.floor(clock[2] / 1000)
  while #items < share do
    local item = redis.pcall('LINDEX', KEYS[2 + i], -1)
    if type(item) ~= 'string' then break end
    local is_read, message = pcall(cjson.decode, item)
    local headers = is_read and type(message) == 'table' and message.headers
    local id = type(headers) == 'table' and type(headers.eta) ~= 'string' and headers.id
    if type(id) == 'string' and room_reserve(running[i], id, now_ms, now_ms + ARGV[4], bounds[i]) == 0 then
      return items, true
    end
    items[#items + 1] = redis.call('RPOP', KEYS[2 + i])
  end
  return items, false
end

local function take(i, share)
  local queue, bell, is_full = KEYS[2 + i], KEYS[2 + queues + i], false
  local items
  if bounds[i] then
    items, is_full = pop_bounded(i, share)
  else
    items = redis.pcall('RPOP', queue, share)
    if type(items) ~= 'table' or items.err then items = {} end -- empty, or somebody's key of another type
  end
  for _, item in ipairs(items) do
    local id = tag .. count
    count = count + 1
    redis.call('ZADD', KEYS[2], now, id)
    redis.call('HSET', KEYS[1], id, '[' .. item .. ',"","' .. string.sub(queue, prefix + 1) .. '"]')
    found[#found + 1] = id
    found[#found + 1] = i
    found[#found + 1] = item
  end
  if is_full or (#items > 0 and #items < share) then redis.call('DEL', bell) end
  return #items == share and not is_full
end

local share = math.max(math.ceil(wanted / queues), 4)
for i = 1, queues do
  if count == wanted or take(i, math.min(share, wanted - count)) then rest[#rest + 1] = i end
end
for _, i in ipairs(rest) do
  local is_full = count < wanted and not take(i, wanted - count) and bounds[i]
  local bell = KEYS[2 + queues + i]
  if is_full or redis.call('EXISTS', KEYS[2 + i]) == 0 then
    redis.call('DEL', bell)
  else
    left[#left + 1] = i
    if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
  end
end
return found
"""
)
"""Move messages from queues into the hands of a worker: each queue's share first, then whatever there is.

KEYS: unacked, unacked_index, the queues (which come in this order), their bells, the running calls of modules with a bound. ARGV: how
many, what their tags begin with, the length of the prefix before each queue's name, for how many ms a place is kept for a call until
it is claimed, then for each module with a bound its queue (from 1) and the bound. Returns [the queues (from 1) where something is
left that may be taken, tag, queue (from 1), message, tag, …]. The bells of such queues ring for the next worker; that of a module
without room does not: see `MAKE_ROOM`. A message that must wait for its time takes no place.
"""

HOLDING = """
local holding = {}
for i, queue in ipairs(KEYS) do
  if redis.call('EXISTS', queue) == 1 then holding[#holding + 1] = i end
end
return holding
"""
"""Which of the queues hold something, from 1. KEYS: the queues."""

MAKE_ROOM = (
    ROOM
    + """
room_release(KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 1 and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], '1') end
return 1
"""
)
"""A worker is done with a message of a module with a bound: the next one may be taken. KEYS: the module's running calls, its
queue, its bell. ARGV: the call's id, whose place is freed if it was never claimed.
"""

_REFUSE_UNLESS_WRITABLE = """
-- Redis refuses a script's first write, if it takes none (out of memory, replica, failing disk): this one changes nothing.
redis.call('ZADD', {index}, 'XX', 'GT', '-inf', '')
"""

RENEW = (
    _REFUSE_UNLESS_WRITABLE.format(index="KEYS[1]")
    + _NOW
    + """
local lost = {}
for _, tag in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[1], tag) then redis.call('ZADD', KEYS[1], now, tag) else lost[#lost + 1] = tag end
end
return lost
"""
)
"""Begin leases anew. KEYS: unacked_index. ARGV: tags. Returns the tags that are lost: others have their messages.

Refused when Redis takes no writes, also without a tag.
"""

ACK = """
redis.call('ZREM', KEYS[2], unpack(ARGV))
return redis.call('HDEL', KEYS[1], unpack(ARGV))
"""
"""Forget messages for good. KEYS: unacked, unacked_index. ARGV: tags. Returns how many there were."""

_PUT_BACK = (
    _REFUSE_UNLESS_WRITABLE.format(index="KEYS[2]")
    + """
-- Returns whether there was such a message, and whether it must stay where it is.
local function put_back(tag, prefix, bell_prefix, redelivered)
  local held = redis.call('HGET', KEYS[1], tag)
  if not held then
    redis.call('ZREM', KEYS[2], tag)
    return 0, false
  end
  local item, name = string.match(held, '^%[(.*), ?"[^"]*", ?"([^"]*)"%]$')
  if not item then return 0, true end -- not written by us nor by kombu: stays where it is
  if redelivered and string.match(item, '^{%s*"') and string.sub(item, 1, 19) ~= '{"redelivered":true' then
    item = '{"redelivered":true,' .. string.sub(item, 2)
  end
  local pushed = redis.pcall('RPUSH', prefix .. name, item)
  if type(pushed) ~= 'number' then return 0, true end -- somebody's key of another type: better kept here than lost
  redis.call('HDEL', KEYS[1], tag)
  redis.call('ZREM', KEYS[2], tag)
  local bell = bell_prefix .. name
  if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
  return 1, false
end
"""
)

PUT_BACK = (
    _PUT_BACK
    + """
local count = 0
for i = #ARGV, 4, -1 do count = count + (put_back(ARGV[i], ARGV[1], ARGV[2], ARGV[3] == '1')) end
return count
"""
)
"""Put messages back to where they came from, to be the next ones, the first tag's first. KEYS: unacked, unacked_index.

ARGV: the prefixes of queues and of bells, '1' if they may have been begun (else '0'), tags. Returns how many there were.
"""

_DEATHS = """
-- A holder has died if nobody listens on its channel, which is so as soon as its process has ended, and it was not told to end.
local is_dead = {}
local function has_died(holder)
  if is_dead[holder] == nil then
    is_dead[holder] = redis.call('PUBSUB', 'NUMSUB', ARGV[6] .. holder)[2] == 0 and redis.call('EXISTS', ARGV[7] .. holder) == 0
  end
  return is_dead[holder]
end

-- Writes into a message whose lease has run out who has died with it. Who was counted and is back, counts no more.
local function mark_deaths(tag)
  local held = redis.call('HGET', KEYS[1], tag)
  local holder, item = string.match(tag, '^w(%x+)%-'), held and string.match(held, '^%[({%s*".*)$')
  if not item then return end
  item = string.gsub(item, '^{"redelivered":true,', '{', 1)
  local before, rest = string.match(item, '^{"died":"([%x ]*)",(.*)$')
  local dead = {}
  for one in string.gmatch((before or '') .. ' ' .. (holder or ''), '%x+') do
    if has_died(one) then dead[#dead + 1] = one end
  end
  if #dead == 0 and not before then return end
  local died = #dead > 0 and '"died":"' .. table.concat(dead, ' ') .. '",' or ''
  redis.call('HSET', KEYS[1], tag, '[{"redelivered":true,' .. died .. (rest or string.sub(item, 2)))
end
"""

RESTORE = (
    _PUT_BACK
    + _DEATHS
    + """
-- Begun before the clock was set back: as nobody may be there who renews them, they begin now.
local clock = redis.call('TIME')
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], clock[1] + 2, '+inf', 'LIMIT', 0, ARGV[4])) do
  redis.call('ZADD', KEYS[2], clock[1], tag)
end
local tags = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])
local restored, stuck = 0, 0
for i = #tags, 1, -1 do
  mark_deaths(tags[i])
  local count, must_stay = put_back(tags[i], ARGV[1], ARGV[2], true)
  restored = restored + count
  if must_stay then
    redis.call('ZADD', KEYS[2], ARGV[5], tags[i]) -- out of the way of the others, which come after it
    stuck = stuck + 1
  end
end
return {#tags, restored, stuck}
"""
)
"""Put back the messages whose lease has run out, the oldest to be next. KEYS: unacked, unacked_index.

ARGV: the prefixes of queues and of bells, when those leases began at the latest, how many at most,
the time now, the prefixes of holders' channels and of notes that they were told to end: a message says in `died` which holders
it had when they died, as far as they are not back. Returns how many leases had run out, how many messages were put back, and how many could not be: their
leases begin anew. Both times must come from an answer of this Redis to this connection: one that froze with the script in its socket runs
it when it wakes, and by its own clock then every lease would have run out.
"""

QUARANTINE = """
-- Stored before it is removed: a script that fails is not undone. A counter that cannot count keeps nobody's message.
redis.call('LPUSH', KEYS[3], ARGV[2])
redis.call('LTRIM', KEYS[3], 0, ARGV[3] - 1)
local count = redis.pcall('INCR', KEYS[4])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
return type(count) == 'number' and count or 0
"""
"""Take a message that nobody can run out of the way. KEYS: unacked, unacked_index, the list, the counter.

ARGV: tag, what to keep of it, how many to keep. Returns how many there have ever been, 0 if the counter is none.
Refused, with nothing changed, if the list is none.
"""

STORE = """
if redis.call('GETRANGE', KEYS[1], 0, 19) == '{"status": "SUCCESS"' then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
if ARGV[4] == '=' then redis.call('PUBLISH', ARGV[1], ARGV[2])
elseif ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[1], ARGV[4]) end
return 1
"""
"""Write a result, unless a success stands there already. KEYS: the result. ARGV: its channel, value, seconds to live,
announcement ('' for none, '=' for the value itself). Returns 1 if it was written.
"""

ANNOUNCE = """
local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', clock[1] - ARGV[3])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock[1] + 1)) do -- later: of before it was set back
  if string.sub(member, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return member end
end
redis.call('ZADD', KEYS[1], clock[1], ARGV[1] .. ' ' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return false
"""
"""Note that a worker lives, unless one lives that works in another mode. KEYS: modes. ARGV: mode, worker, how many seconds
a note counts. Returns `<mode> <worker>` of one that works otherwise, or nothing.
"""
