"""What scripts inside Redis know of overload: a module's room, a caller's share, a lane's slots.

Each text defines local functions and nothing else, to stand before a script that calls them. Key names are handed in.
Times are handed in as well, by the server's clock but for a share's. A function
that is called again with the same id changes nothing more. Every key that one writes has a TTL.
"""

LONGEST_LEASE_SECONDS = 15.0
"""Of a call that runs. RabbitMQ delivers the calls of a dead worker at once, and they wait for this."""

_LONGEST_LEASE_MS = int(LONGEST_LEASE_SECONDS * 1000)

ROOM = f"""
-- Kept until the last lease, and half a minute more, so that most calls need not move the end.
local function room_keep(key, rest_ms)
  if redis.call('PTTL', key) < rest_ms then redis.call('PEXPIRE', key, math.ceil(rest_ms) + 30000) end
end

local function room_take(key, id, now, until_ms, bound)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  if redis.call('ZCARD', key) >= bound and not redis.call('ZSCORE', key, id) then
    -- Of before the clock was set back: as nobody may be there who leaves, the lease begins now.
    local ahead = redis.call('ZRANGEBYSCORE', key, now + {_LONGEST_LEASE_MS + 1000}, '+inf', 'WITHSCORES')
    for i = 1, #ahead, 2 do redis.call('ZADD', key, now + {_LONGEST_LEASE_MS} + ahead[i + 1] % 1, ahead[i]) end
    return 0
  end
  redis.call('ZADD', key, until_ms, id)
  room_keep(key, until_ms - now)
  return 1
end

local function room_leave(key, id)
  return redis.call('ZREM', key, id)
end

-- A place that is kept and not taken has half a millisecond in its end, which no lease has.
local function room_reserve(key, id, now, until_ms, bound)
  if redis.call('ZSCORE', key, id) then return 1 end
  return room_take(key, id, now, math.floor(until_ms) + 0.5, bound)
end

local function room_release(key, id)
  local kept = redis.call('ZSCORE', key, id)
  if kept and tonumber(kept) % 1 == 0.5 then redis.call('ZREM', key, id) end
end

local function room_renew(key, id, until_ms)
  redis.call('ZADD', key, 'XX', 'GT', until_ms, id)
  local clock = redis.call('TIME')
  if redis.call('EXISTS', key) == 1 then room_keep(key, until_ms - clock[1] * 1000) end
end

local function room_left(key, now, bound)
  return math.max(bound - redis.call('ZCOUNT', key, '(' .. string.format('%.17g', now), '+inf'), 0)
end
"""
"""How many calls run in a module at once, each until its lease ends.

`room_take(key, id, now, until_ms, bound)`: 1 if the call has its place, also if it had it already, else 0.
`room_reserve` is the same for a call that has not begun, and leaves alone what it has; `room_release(key, id)` frees that.
`room_leave(key, id)` frees whatever place it has. `room_renew(key, id, until_ms)` keeps it for longer, if it is there.
`room_left(key, now, bound)`: how many more may run. Changes nothing.
"""

SHARE_KEPT_SECONDS = 3600
"""How long the share's key lives at least after its last call, so that its end need hardly ever be moved."""

SHARE = f"""
local function share_take(key, id, deadline_s, bound, keep_ms)
  redis.call('ZADD', key, deadline_s, id)
  local count = redis.call('ZCARD', key)
  if count > bound then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', redis.call('TIME')[1])
    count = redis.call('ZCARD', key)
    if count > bound then
      redis.call('ZREM', key, id)
      return 0
    end
  end
  if count == 1 then
    redis.call('PEXPIRE', key, math.max(keep_ms, {SHARE_KEPT_SECONDS * 1000}))
  elseif keep_ms > 0 and redis.call('PTTL', key) < keep_ms then
    redis.call('PEXPIRE', key, keep_ms)
  end
  return 1
end

local function share_leave(key, id)
  return redis.call('ZREM', key, id)
end
"""
"""A caller's published, unfinished calls in a lane, each until its deadline, by the clock of the agent that made it.

`share_take(key, id, deadline_s, bound, keep_ms)`: 1 if the call is one of them, also if it was already, else 0. `keep_ms` has the
key live so long from now on, at least; 0 leaves that as it is. It must be given for a call with more than half of
`SHARE_KEPT_SECONDS` until its deadline, and once in a quarter of it for all others, or a share that is in use may be
forgotten. `share_leave(key, id)` takes a call out.
"""

SLOTS_COUNT_SECONDS = 20
"""A worker that has noted no slots for so long has died."""

SLOTS = """
local function slots_sum(key, since_s)
  local sum = 0
  for _, note in ipairs(redis.call('ZRANGEBYSCORE', key, since_s, '+inf')) do
    sum = sum + (tonumber(string.match(note, '^%d+')) or 0)
  end
  return sum
end

local function slots_note(key, note, counts_s)
  local clock = redis.call('TIME')
  redis.call('ZADD', key, clock[1], note)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', clock[1] - counts_s - 1)
  redis.call('ZREMRANGEBYSCORE', key, clock[1] + 1, '+inf') -- the clock was set back: who lives says so again
  redis.call('EXPIRE', key, counts_s)
end
"""
"""How many calls the workers of a lane run at once, each by its note, `<how many> <worker>`, and more perhaps. Times are in seconds.

`slots_sum(key, since_s)`: the sum of what was noted since then. `slots_note(key, note, counts_s)` notes a worker's, by the
server's clock, and forgets those of workers that have been silent for longer than a note counts.
"""
