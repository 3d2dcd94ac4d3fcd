-- A caller's published, unfinished calls in a lane, each until its deadline, by the clock of the agent that made it; in whole
-- seconds, as Redis looks through so short a set from its beginning, and reads fractions out of texts.
-- `caller_take(key, id, deadline_s, bound, keep_ms)`: 1 if the call is one of them, also if it was already, else 0.
-- `keep_ms` has the key live so long from now on, at least; 0 leaves that as it is. It must be given for a call with more than
-- half of CALLER_LIMIT_KEPT_SECONDS until its deadline, and once in a quarter of it for all others, or a key that is in use
-- may be forgotten. `caller_leave(key, id)` takes a call out.
-- constants: CALLER_LIMIT_KEPT_SECONDS

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

local function caller_leave(key, id)
  return redis.call('ZREM', key, id)
end
