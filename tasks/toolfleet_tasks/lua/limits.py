"""What scripts inside Redis know of a user's limits: which calls count in each, since when.

A limit is a sorted set of call ids with the time (ms, the server's) from which each counts. Beside it stand those that
no worker has begun yet, each until its deadline: one that passes it was never begun, and counts no longer. Which limits a
call counts in is noted under its own key, by which it is given back, whoever ends it.

Each text defines local functions and nothing else. Times are handed in. A function that is called again with the same id
changes nothing more. Every key that one writes has a TTL.
"""

from toolfleet_tasks.lua.script import Script

LIMITS = """
local day_ms, limit_margin_ms = 86400000, 60000

-- Those that nobody ever began: their agent died before it had published them, or their message is lost. And what would count
-- from later on: the server's clock was set back.
local function limit_forget(key, now)
  if tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0) > now then
    local after = '(' .. string.format('%.0f', now)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, 500)) do redis.call('ZADD', key, now, id) end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key .. ':unbegun', '-inf', now, 'LIMIT', 0, 500)) do
    redis.call('ZREM', key, id)
    redis.call('ZREM', key .. ':unbegun', id)
  end
end

local function limit_rest(key, daily, cooldown, now)
  local rest, is_daily, midnight = 0, 0, now - now % day_ms
  if daily > 0 and redis.call('ZCOUNT', key, midnight, '+inf') >= daily then
    rest, is_daily = midnight + day_ms - now, 1
  end
  local newest = cooldown > 0 and redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if newest and newest + cooldown - now > rest then rest, is_daily = newest + cooldown - now, 0 end
  return rest, is_daily
end

-- Whoever let it in may have known of other terms.
local function limit_rest_of(key, id, daily, cooldown, now)
  local mine, rank = tonumber(redis.call('ZSCORE', key, id)), redis.call('ZRANK', key, id)
  local rest, is_daily, midnight = 0, 0, mine - mine % day_ms
  local before = '(' .. string.format('%.0f', midnight)
  if daily > 0 and rank - redis.call('ZCOUNT', key, '-inf', before) >= daily then
    rest, is_daily = math.max(now - now % day_ms + day_ms - now, 1), 1
  end
  local last = cooldown > 0 and rank > 0 and redis.call('ZRANGE', key, rank - 1, rank - 1, 'WITHSCORES')[2]
  if last and mine - last < cooldown then rest = math.max(rest, last + cooldown - now, 1) end
  return rest, is_daily
end

local function limit_take(key, id, cooldown, now, until_ms)
  local midnight = now - now % day_ms
  if not redis.call('ZSCORE', key, id) then -- one that counts since yesterday does not count anew today
    -- The newest one stays, for the tool may have a longer cooldown where it is called in another way.
    local old = redis.call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', math.min(midnight, now - cooldown)))
    old = math.min(old, redis.call('ZCARD', key) - 1)
    if old > 0 then redis.call('ZREMRANGEBYRANK', key, 0, old - 1) end
    redis.call('ZADD', key, now, id)
  end
  local keep = math.max(midnight + day_ms - now, cooldown) + limit_margin_ms
  if redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, keep) end
  if not until_ms then
    redis.call('ZREM', key .. ':unbegun', id)
    return
  end
  redis.call('ZADD', key .. ':unbegun', until_ms, id)
  keep = math.max(until_ms - now, 0) + limit_margin_ms
  if redis.call('PTTL', key .. ':unbegun') < keep then redis.call('PEXPIRE', key .. ':unbegun', keep) end
end
"""
"""`limit_forget(key, now)` comes before the others, which count what is there.

`limit_rest(key, daily, cooldown, now)`: the milliseconds until a call may be let in, 0 for now, and 1 if that is for the day's
limit; `daily` and `cooldown` (ms) are 0 for none. `limit_rest_of` says the same of a call that counts already: 0 if it was
let in rightly. `limit_take(key, id, cooldown, now, until_ms)` has a call count, from when it did before, if it did; until
then only, if it is not begun by then, or without an `until_ms` for good.
"""

RETURN = """
local function limits_return(held_key, id)
  local held = redis.call('GET', held_key)
  if not held then return end
  for key in string.gmatch(held, '%S+') do
    redis.call('ZREM', key, id)
    redis.call('ZREM', key .. ':unbegun', id)
  end
  redis.call('DEL', held_key)
end
"""
"""`limits_return(held_key, id)`: the call has done nothing, so it counts in no limit any more."""

TAKE = (
    """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
    + LIMITS
    + """
local found = redis.call('HMGET', KEYS[2], 'token', 'begun', 'state')
if found[1] ~= ARGV[1] and (found[1] or found[2] or found[3]) then return -1 end
local id, held = ARGV[2], redis.call('GET', KEYS[1]) or ''
local most, which, is_daily, is_held, names = 0, 0, 0, {}, {}
for i = 3, #KEYS do
  local key, rest, day = KEYS[i], 0, 0
  limit_forget(key, now)
  names[i - 2] = key
  if redis.call('ZSCORE', key, id) then
    rest, day = limit_rest_of(key, id, tonumber(ARGV[2 * i - 2]), tonumber(ARGV[2 * i - 1]), now)
  elseif string.find(' ' .. held .. ' ', ' ' .. key .. ' ', 1, true) then
    is_held[i] = true -- on a day that nobody counts any more
  else
    rest, day = limit_rest(key, tonumber(ARGV[2 * i - 2]), tonumber(ARGV[2 * i - 1]), now)
  end
  if rest > most then most, which, is_daily = rest, i - 2, day end
end
if most > 0 then return {'limited', which, is_daily, most, now} end
for i = 3, #KEYS do
  if not is_held[i] then limit_take(KEYS[i], id, tonumber(ARGV[2 * i - 1]), now) end
end
for key in string.gmatch(held, '%S+') do
  redis.call('ZREM', key .. ':unbegun', id)
  if not string.find(' ' .. table.concat(names, ' ') .. ' ', ' ' .. key .. ' ', 1, true) then names[#names + 1] = key end
end
if #names > 0 then redis.call('SET', KEYS[1], table.concat(names, ' '), 'PX', ARGV[3]) end
return 0
"""
)
"""Have a call that is about to begin count for good in its limits: in those in which it does not yet, if there is room; and in
those in which whoever let it in had it count.

KEYS: where its limits are noted, its record, then the limits. ARGV: token, call id, for how many ms that note lives, then for
each limit how many calls a day (0: any number), and its cooldown (ms). Returns 0; or -1 if others have the call, or ['limited',
which one of them is the last to be free again, 1 if that is for the day's limit, the ms until then, the server's time (ms)],
and has changed nothing. May be sent again.
"""

LOOK = (
    """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
    + LIMITS
    + """
local answer = {now}
for i, key in ipairs(KEYS) do
  limit_forget(key, now)
  local rest = limit_rest(key, tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i]), now)
  answer[#answer + 1] = redis.call('ZCOUNT', key, now - now % day_ms, '+inf')
  answer[#answer + 1] = rest
end
return answer
"""
)
"""What is used of limits. KEYS: the limits. ARGV: for each how many calls a day, and its cooldown (ms). Returns the server's time (ms),
then for each the calls that count on this day, and the ms until the next one may be let in.
"""

JUDGE = Script(
    """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
    + LIMITS
    + """
local count, most, which, is_daily = tonumber(ARGV[1]), 0, 0, 0
if KEYS[count + 1] and redis.call('EXISTS', KEYS[count + 1]) == 1 then return 0 end
for i = 1, count do
  limit_forget(KEYS[i], now)
  local rest, day = limit_rest(KEYS[i], tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1]), now)
  if rest > most then most, which, is_daily = rest, i, day end
end
if most > 0 then return {'limited', which, is_daily, most, now} end
return 0
"""
)
"""Say whether a call would be let in now. Takes nothing: whoever lets it in judges anew.

KEYS: the limits, then the idempotency key if it has one: where that stands for a call, this one joins it and counts nowhere.
ARGV: how many limits, then for each how many calls a day (0: any number), and its cooldown (ms). Returns 0, or as `TAKE` does
['limited', …].
"""
