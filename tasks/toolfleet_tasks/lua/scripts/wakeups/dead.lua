-- `dead_drop(id)`: forgets dead news, 1 if they were there.
-- `dead_put(id, value, at)`: keeps them, given up at that time (ms). Both count their bytes.

local function dead_drop(id)
  local size = redis.call('HSTRLEN', dead, id)
  redis.call('ZREM', dead_order, id)
  if redis.call('HDEL', dead, id) == 0 then return 0 end
  if redis.call('EXISTS', dead) == 0 then redis.call('DEL', dead_bytes) else redis.call('DECRBY', dead_bytes, size) end
  return 1
end

local function dead_put(id, value, at)
  dead_drop(id)
  redis.call('HSET', dead, id, value)
  redis.call('ZADD', dead_order, at, id)
  redis.call('INCRBY', dead_bytes, #value)
end
