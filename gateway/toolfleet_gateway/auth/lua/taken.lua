-- Returns for how many microseconds the bucket is not full yet, and how many streams are open.
-- keys: bucket, streams
-- args: lease_ms
-- include: live_streams

local now = time[1] * 1000000 + time[2]
return {math.max(0, tonumber(redis.call('GET', bucket) or '0') - now), redis.call('ZCARD', streams)}
