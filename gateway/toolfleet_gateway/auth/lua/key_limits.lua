-- What each API key uses: a bucket of requests that fills with time, and the streams that are open.

-- Removes the streams whose gateway has not said within its lease that they are open. Returns Redis's time, and the end of a lease
-- that begins now.
local function live_streams()
  local time = redis.call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', streams, '-inf', now_ms)
  local latest = string.format('%.0f', now_ms + lease_ms)
  for _, each in ipairs(redis.call('ZRANGEBYSCORE', streams, '(' .. latest, '+inf')) do -- the clock was set back
    redis.call('ZADD', streams, latest, each)
  end
  return time, latest
end

local function keep_stream(latest)
  redis.call('ZADD', streams, latest, id)
  redis.call('PEXPIRE', streams, lease_ms)
end

-- script: take_request(bucket; interval_us, burst)
-- Takes one request out of the bucket. Returns 0, or in how many microseconds there will be one.
-- bucket: when it will be full again, in microseconds of Redis's time.
-- interval_us: how long one takes to come. burst: how many it holds.
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

-- script: take_stream(streams; lease_ms, most, id)
-- Opens a stream for lease_ms, unless as many are open as may be. Returns 1, or 0.
local _, latest = live_streams()
if redis.call('ZCARD', streams) >= tonumber(most) then return 0 end
keep_stream(latest)
return 1

-- script: renew_stream(streams; lease_ms, id)
-- Says that a stream is open for lease_ms from now on; also one whose lease has run out, for it is open.
local _, latest = live_streams()
keep_stream(latest)

-- script: taken(bucket, streams; lease_ms)
-- Returns for how many microseconds the bucket is not full yet, and how many streams are open.
local time = live_streams()
local now = time[1] * 1000000 + time[2]
return {math.max(0, tonumber(redis.call('GET', bucket) or '0') - now), redis.call('ZCARD', streams)}
