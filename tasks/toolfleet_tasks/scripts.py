"""Every script that runs inside Redis: what must happen at once, or not at all.

Sent as text each time (`EVAL`): they are short, and so survive restarts, fail-overs and SCRIPT FLUSH. Commands of Redis
6.2 only. Times are the server's, so that machines whose clocks differ do not take each other's calls for lost.

A message that a worker holds stands in two of kombu's keys: the hash `unacked`, by its tag, as the JSON text
`[<message>,"","<queue>"]`, and the sorted set `unacked_index`, by the time when its lease began. A *bell* is a list of at
most one token beside each queue: the queue may hold something, and nobody is at it. Losing a token loses no message.
"""

PUBLISH = """
local length = redis.call('LPUSH', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], '1') end
return length
"""
"""Put a message into a queue and ring its bell. KEYS: queue, bell. ARGV: message. Returns the queue's length."""

_NOW = """
local clock = redis.call('TIME')
local now = string.format('%d.%06d', clock[1], clock[2])
"""

RESERVE = (
    _NOW
    + """
-- Wrong types must show before anything is taken: a script that fails is not undone.
redis.call('HLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
local wanted, tag, first, prefix = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local queues = (#KEYS - 2) / 2
local found, count, rest = {0}, 0, {}

local function take(i, share)
  local queue = KEYS[2 + i]
  local items = redis.pcall('RPOP', queue, share)
  if type(items) ~= 'table' or items.err then items = {} end -- empty, or somebody's key of another type
  for _, item in ipairs(items) do
    local id = tag .. count
    count = count + 1
    redis.call('ZADD', KEYS[2], now, id)
    redis.call('HSET', KEYS[1], id, '[' .. item .. ',"","' .. string.sub(queue, prefix + 1) .. '"]')
    found[#found + 1] = id
    found[#found + 1] = i
    found[#found + 1] = item
  end
  if #items > 0 and #items < share then redis.call('DEL', KEYS[2 + queues + i]) end
  return #items == share
end

local share = math.max(math.ceil(wanted / queues), 4)
for step = 0, queues - 1 do
  local i = (first + step) % queues + 1
  if count == wanted or take(i, math.min(share, wanted - count)) then rest[#rest + 1] = i end
end
for _, i in ipairs(rest) do
  if count < wanted then take(i, wanted - count) end
  local bell = KEYS[2 + queues + i]
  if redis.call('EXISTS', KEYS[2 + i]) == 0 then
    redis.call('DEL', bell)
  else
    found[1] = 1
    if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
  end
end
return found
"""
)
"""Move messages from queues into the hands of a worker: each queue's share first, then whatever there is.

KEYS: unacked, unacked_index, the queues, their bells. ARGV: how many, what their tags begin with, the queue to begin at
(from 0), the length of the prefix before each queue's name. Returns [1 if anything is left, tag, queue (from 1), message,
tag, …]. The bells of queues that still hold something ring for the next worker.
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

RESTORE = (
    _PUT_BACK
    + """
local tags = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])
local restored, stuck = 0, 0
for i = #tags, 1, -1 do
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
the time now. Returns how many leases had run out, how many messages were put back, and how many could not be: their
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
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return member end
end
redis.call('ZADD', KEYS[1], clock[1], ARGV[1] .. ' ' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return false
"""
"""Note that a worker lives, unless one lives that works in another mode. KEYS: modes. ARGV: mode, worker, how many seconds
a note counts. Returns `<mode> <worker>` of one that works otherwise, or nothing.
"""
