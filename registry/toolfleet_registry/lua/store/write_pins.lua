-- `write_pins(wanted, marker)`: stores pins, field -> digest; what belongs to the module with this field, or to any if it is '',
-- and is not wanted, goes.
-- include: store/events

local function write_pins(wanted, marker)
  local found = redis.call('HGETALL', pins)
  local prefix = string.sub(marker, 1, -2) .. ','
  for i = 1, #found, 2 do
    local field = found[i]
    if wanted[field] == found[i + 1] then
      wanted[field] = nil
    elseif wanted[field] == nil and (marker == '' or field == marker or string.sub(field, 1, #prefix) == prefix) then
      redis.call('HDEL', pins, field)
      changes = changes + 1
    end
  end
  for field, digest in pairs(wanted) do
    redis.call('HSET', pins, field, digest)
    changes = changes + 1
  end
end
