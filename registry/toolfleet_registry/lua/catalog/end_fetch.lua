-- Ends a request for a module's manifest; the next one may come after a pause, which grows from one in vain to the next.
-- in_vain: '1' if it was, else '0'. shortest_ms, longest_ms: of the pause after one in vain. fresh_ms: after a good one.
-- fetch, forget_ms: as `catalog/begin_fetch` has them.
-- keys: fetch
-- args: in_vain, shortest_ms, longest_ms, fresh_ms, forget_ms
-- include: catalog/now

local pause = tonumber(fresh_ms)
if in_vain == '1' then
  local vain = math.min(redis.call('HINCRBY', fetch, 'vain', 1), 20)
  pause = math.min(shortest_ms * 2 ^ (vain - 1), tonumber(longest_ms))
else
  redis.call('HDEL', fetch, 'vain')
end
redis.call('HSET', fetch, 'until', string.format('%.0f', now + pause))
redis.call('PEXPIRE', fetch, forget_ms)
return math.ceil(pause)
