-- What is stored of a waiting approval counts in its user's share, beside the stored results.
-- `usage_add(approval, stored, id, bytes, until_ms)`: counts it from now on, until it expires at the latest.
-- `usage_remove(approval)`: counts it no longer.
-- include: now, storage/stored
-- constants: WAITING_COUNTS_BYTES

local function usage_remove(approval)
  local counted = redis.call('HMGET', approval, 'stored_key', 'stored_member')
  if not counted[1] then return end
  stored_forget(counted[1], counted[2])
  redis.call('HDEL', approval, 'stored_key', 'stored_member')
end

local function usage_add(approval, stored, id, bytes, until_ms)
  usage_remove(approval)
  id, bytes = 'approval:' .. id, math.max(bytes, WAITING_COUNTS_BYTES)
  stored_add(stored, id, bytes, now, math.max(until_ms - now, 1000))
  redis.call('HSET', approval, 'stored_key', stored, 'stored_member', id .. ' ' .. bytes)
end
