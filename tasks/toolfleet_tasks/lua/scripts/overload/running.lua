-- How many calls run in a module at once, each until its lease ends.
-- `running_take(key, id, now, until_ms, bound)`: 1 if the call has its place, also if it had it already, else 0.
-- `running_reserve` is the same for a call that has not begun, and leaves alone what it has; `running_release(key, id)` frees that.
-- `running_leave(key, id)` frees whatever place it has. `running_renew(key, id, until_ms)` keeps it for longer, if it is there.
-- `running_left(key, now, bound)`: how many more may run. Changes nothing.
-- constants: LONGEST_LEASE_MS

-- Kept until the last lease, and half a minute more, so that most calls need not move the end.
local function running_keep(key, rest_ms)
  if redis.call('PTTL', key) < rest_ms then redis.call('PEXPIRE', key, math.ceil(rest_ms) + 30000) end
end

local function running_take(key, id, now, until_ms, bound)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  if redis.call('ZCARD', key) >= bound and not redis.call('ZSCORE', key, id) then
    -- Of before the clock was set back: as nobody may be there who leaves, the lease begins now.
    local ahead = redis.call('ZRANGEBYSCORE', key, now + LONGEST_LEASE_MS + 1000, '+inf', 'WITHSCORES')
    for i = 1, #ahead, 2 do redis.call('ZADD', key, now + LONGEST_LEASE_MS + ahead[i + 1] % 1, ahead[i]) end
    return 0
  end
  redis.call('ZADD', key, until_ms, id)
  running_keep(key, until_ms - now)
  return 1
end

local function running_leave(key, id)
  return redis.call('ZREM', key, id)
end

-- A place that is kept and not taken has half a millisecond in its end, which no lease has.
local function running_reserve(key, id, now, until_ms, bound)
  if redis.call('ZSCORE', key, id) then return 1 end
  return running_take(key, id, now, math.floor(until_ms) + 0.5, bound)
end

local function running_release(key, id)
  local kept = redis.call('ZSCORE', key, id)
  if kept and tonumber(kept) % 1 == 0.5 then redis.call('ZREM', key, id) end
end

local function running_renew(key, id, until_ms)
  redis.call('ZADD', key, 'XX', 'GT', until_ms, id)
  local clock = redis.call('TIME')
  if redis.call('EXISTS', key) == 1 then running_keep(key, until_ms - clock[1] * 1000) end
end

local function running_left(key, now, bound)
  return math.max(bound - redis.call('ZCOUNT', key, '(' .. string.format('%.17g', now), '+inf'), 0)
end
