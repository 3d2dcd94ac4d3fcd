-- `counted(size)`: counts the call's result, which has so many bytes, among those that are stored for its caller.
-- include: now, storage/stored

local function counted(size)
  local stored = stored_key(caller_limit)
  if not stored then return end
  stored_add(stored, call_id, size, now, result_seconds * 1000)
  redis.call('HSET', record, 'size', size)
end
