-- `forget(letters, order, bytes, id)`: forgets a letter, 1 if it was there. `bytes` counts what all of them take; it may be nil.

local function forget(letters, order, bytes, id)
  local size = bytes and redis.call('HSTRLEN', letters, id)
  local found = redis.call('ZREM', order, id) + redis.call('HDEL', letters, id)
  redis.call('HDEL', letters, id .. '/replay')
  if bytes and redis.call('EXISTS', letters) == 0 then
    redis.call('DEL', bytes)
  elseif bytes and size > 0 then
    redis.call('DECRBY', bytes, size)
  end
  return math.min(found, 1)
end
