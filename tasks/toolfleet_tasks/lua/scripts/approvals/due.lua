-- The calls about whose approval something is to be done; nobody else gets them before the lease is over.
-- fleet_ms: by the fleet's clock.
-- keys: waiting
-- args: fleet_ms, lease_ms, count

local due = redis.call('ZRANGEBYSCORE', waiting, '-inf', fleet_ms, 'LIMIT', 0, count)
for _, id in ipairs(due) do redis.call('ZADD', waiting, fleet_ms + lease_ms, id) end
return due
