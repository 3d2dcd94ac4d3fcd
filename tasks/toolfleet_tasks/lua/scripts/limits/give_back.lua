-- `limits_return(held_key, id)`: the call has done nothing, so it counts in no limit any more.

local function limits_return(held_key, id)
  local held = redis.call('GET', held_key)
  if not held then return end
  for key in string.gmatch(held, '%S+') do
    redis.call('ZREM', key, id)
    redis.call('ZREM', key .. ':unbegun', id)
  end
  redis.call('DEL', held_key)
end
