-- Takes what is due. Sent again, it takes others; the first ones come back when their lease is over.
-- prefix: what the hashes' names begin with. most: how many at most.
-- keys: due, clock_key
-- args: prefix, token, lease_ms, most
-- include: wakeups/now

local READ_AT_ONCE = 100 -- news that wait, those due next first, of which it is seen whether they wait for longer than they were to
-- Put off while the clock that was set forward was taken for the time: they wait for as long as they were to from now on.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, now + 1000, '+inf', 'LIMIT', 0, READ_AT_ONCE)) do
  local found = redis.call('HMGET', prefix .. id, 'rest', 'tries')
  local rest = tonumber(found[1] or nil) or (found[2] == '0' and 0)
  if rest and redis.call('ZSCORE', due, id) - now > rest + 1000 then redis.call('ZADD', due, now + rest, id) end
end
local claimed = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
  local key = prefix .. id
  local found = redis.call('HMGET', key, 'kind', 'body', 'tries')
  if found[1] and found[2] then
    redis.call('HSET', key, 'token', token, 'rest', lease_ms)
    redis.call('ZADD', due, now + lease_ms, id)
    claimed[#claimed + 1] = {id, found[1], found[2], redis.call('HINCRBY', key, 'tries', 1)}
  else
    redis.call('ZREM', due, id)
    redis.call('DEL', key)
  end
end
return claimed
