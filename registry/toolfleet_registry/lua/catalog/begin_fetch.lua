-- Begins to fetch a module's manifest, unless somebody has begun, or has failed just now.
-- fetch: a hash, `until` nobody else asks (ms), and how many requests in a row were in `vain`.
-- request_ms: for the request. longest_ms: of a pause, which no set-back of the server's clock prolongs.
-- forget_ms: until all of it is forgotten.
-- keys: fetch
-- args: request_ms, longest_ms, forget_ms
-- include: catalog/now

local rest = tonumber(redis.call('HGET', fetch, 'until') or 0) - now
if rest > 0 and rest <= math.max(request_ms, longest_ms) then return rest end
redis.call('HSET', fetch, 'until', now + request_ms)
redis.call('PEXPIRE', fetch, forget_ms)
return 0
