-- Takes one request out of a bucket that fills with time. Returns 0, or in how many microseconds there will be one.
-- bucket: when it will be full again, in microseconds of Redis's time.
-- interval_us: how long one takes to come. burst: how many it holds.
-- keys: bucket
-- args: interval_us, burst

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, most = tonumber(interval_us), interval_us * burst
local full_at = tonumber(redis.call('GET', bucket) or '0')
if full_at < now then full_at = now end
if full_at > now + most then full_at = now + most end -- the clock was set back
local left = full_at + interval - now - most
if left > 0 then return math.ceil(left) end
full_at = full_at + interval
redis.call('SET', bucket, string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
return 0
