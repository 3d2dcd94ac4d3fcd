-- Notes that a worker lives, unless one lives that works in another mode.
-- seconds: for how long a note counts.
-- keys: modes
-- args: mode, worker, seconds

local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', modes, '-inf', clock[1] - seconds)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', modes, '-inf', clock[1] + 1)) do -- later: of before it was set back
  if string.sub(member, 1, #mode + 1) ~= mode .. ' ' then return member end
end
redis.call('ZADD', modes, clock[1], mode .. ' ' .. worker)
redis.call('EXPIRE', modes, seconds)
return false
