-- `now_ms`: Redis's time. What remains in `streams` are those whose gateway has said within its lease that they are open.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', streams, '-inf', now_ms)
local latest = string.format('%.0f', now_ms + lease_ms)
for _, each in ipairs(redis.call('ZRANGEBYSCORE', streams, '(' .. latest, '+inf')) do -- the clock was set back
  redis.call('ZADD', streams, latest, each)
end
