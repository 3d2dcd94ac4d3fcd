-- `fleet_time(key)`: the fleet's time, the server's (both in microseconds), and `since`.
-- constants: RETURN_RATE

local function fleet_time(key)
  local clock = redis.call('TIME')
  local server = clock[1] * 1000000 + clock[2]
  local found = redis.call('HMGET', key, 'offset', 'since')
  local offset, since = tonumber(found[1] or 0) or 0, tonumber(found[2] or 0) or 0
  local rest = math.max(math.abs(offset) - RETURN_RATE * math.max(server - since, 0), 0)
  return server + (offset < 0 and -rest or rest), server, found[2] or ''
end
