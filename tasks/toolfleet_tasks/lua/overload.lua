-- Bounds of what is under way: a caller's calls, a module's, and the slots of a lane's workers.

-- A caller's published, unfinished calls in a lane, each until its deadline, by the clock of the agent that made it; in whole
-- seconds, as Redis looks through so short a set from its beginning, and reads fractions out of texts.

-- Returns 1 if the call is one of them, also if it was already, else 0.
-- `keep_ms` has the key live so long from now on, at least; 0 leaves that as it is. It must be given for a call with more than
-- half of CALLER_LIMIT_KEPT_SECONDS until its deadline, and once in a quarter of it for all others, or a key that is in use
-- may be forgotten.
local function caller_take(key, id, deadline_s, bound, keep_ms)
  redis.call('ZADD', key, math.ceil(deadline_s), id)
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
    redis.call('PEXPIRE', key, math.max(keep_ms, CALLER_LIMIT_KEPT_SECONDS * 1000))
  elseif keep_ms > 0 and redis.call('PTTL', key) < keep_ms then
    redis.call('PEXPIRE', key, keep_ms)
  end
  return 1
end

-- How many calls run in a module at once, each until its lease ends. The key is kept until the last lease, and half a minute
-- more, so that most calls need not move the end.
local function running_keep(key, rest_ms)
  if redis.call('PTTL', key) < rest_ms then redis.call('PEXPIRE', key, math.ceil(rest_ms) + 30000) end
end

-- Returns 1 if the call has its place, also if it had it already, else 0.
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

-- The same for a call that has not begun. A place that is kept and not taken has half a millisecond in its end, which no lease has.
local function running_reserve(key, id, now, until_ms, bound)
  if redis.call('ZSCORE', key, id) then return 1 end
  return running_take(key, id, now, math.floor(until_ms) + 0.5, bound)
end

-- Frees a place that is kept and not taken.
local function running_release(key, id)
  local kept = redis.call('ZSCORE', key, id)
  if kept and tonumber(kept) % 1 == 0.5 then redis.call('ZREM', key, id) end
end

-- Keeps a place for longer, if it is there.
local function running_renew(key, id, until_ms)
  redis.call('ZADD', key, 'XX', 'GT', until_ms, id)
  local clock = redis.call('TIME')
  if redis.call('EXISTS', key) == 1 then running_keep(key, until_ms - clock[1] * 1000) end
end

-- How many calls the workers of a lane run at once: the sum of what was noted since then. A note is `<how many> <worker>`, and more
-- perhaps, by when it was noted (s).
local function slots_sum(key, since_s)
  local sum = 0
  for _, note in ipairs(redis.call('ZRANGEBYSCORE', key, since_s, '+inf')) do
    sum = sum + (tonumber(string.match(note, '^%d+')) or 0)
  end
  return sum
end
