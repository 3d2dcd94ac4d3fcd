-- A try has failed. The last one is made just when the news would be given up.
-- next_ms: until the next try, '': there is none. give_up_ms: after `first_at`.
-- dead_kept, bytes_kept: how many dead ones are kept, of how many bytes.
-- dead_body: the body that is kept when it is dead, '': as it is.
-- job: that of whose end they are; their own key where there is none. outcome: what the job keeps of it when they are given up.
-- keys: wake, due, dead, dead_order, dead_bytes, clock_key, job
-- args: id, token, next_ms, reason, give_up_ms, dead_kept, bytes_kept, dead_body, outcome
-- include: wakeups/now, wakeups/outcome, dead_letters/forget

local found = redis.call('HMGET', wake, 'token', 'first_at', 'kind', 'body', 'tries')
if found[1] ~= token then return 'lost' end
local rest = (tonumber(found[2]) or now) + give_up_ms - now
if next_ms ~= '' and rest > 0 then
  local wait = math.min(tonumber(next_ms), rest)
  redis.call('HDEL', wake, 'token')
  redis.call('HSET', wake, 'error', reason, 'rest', wait)
  redis.call('ZADD', due, now + wait, id)
  return 'later'
end
local body = dead_body ~= '' and dead_body or found[4]
local event = cjson.encode({kind = found[3], body = body, tries = found[5],
  first_at = found[2], died_at = string.format('%.0f', now), error = reason})
forget(dead, dead_order, dead_bytes, id)
redis.call('HSET', dead, id, event)
redis.call('ZADD', dead_order, now, id)
redis.call('INCRBY', dead_bytes, #event)
redis.call('ZREM', due, id)
redis.call('DEL', wake)
outcome_noted(job, outcome)
for _ = 1, 500 do -- after a lower limit the rest goes by and by
  local bytes = tonumber(redis.call('GET', dead_bytes)) or 0
  if redis.call('ZCARD', dead_order) <= tonumber(dead_kept) and bytes <= tonumber(bytes_kept) then break end
  local oldest = redis.call('ZRANGE', dead_order, 0, 0)[1]
  if not oldest or oldest == id then break end
  forget(dead, dead_order, dead_bytes, oldest)
end
return 'dead'
