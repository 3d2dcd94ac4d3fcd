-- Tells what is fed now.
-- counts_s: for so long a feeding counts.
-- keys: feeds
-- args: counts_s

local now = tonumber(redis.call('TIME')[1])
return redis.call('ZRANGEBYSCORE', feeds, now - counts_s + 1, '+inf')
