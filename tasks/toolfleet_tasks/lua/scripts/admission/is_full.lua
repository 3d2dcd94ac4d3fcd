-- `is_full()`: what bound stands against a call, nil for nothing. `found_bound`: the caller's limit if it was looked up here.
-- A message that is no larger than its part of the bytes is bounded by the number of those that wait.
-- include: admission/stands_against
-- lazily: overload/slots(slots_sum), storage/stored(stored_bytes)
-- constants: BYTES_FROM_MESSAGES, SLOTS_COUNT_SECONDS

local found_bound = 0
bound, limit = tonumber(bound), tonumber(limit)
backlog_bytes, stored_bytes_most = tonumber(backlog_bytes), tonumber(stored_bytes_most)

local function is_full()
  if bound <= 0 then
    found_bound = 2 * slots_sum(slots, redis.call('TIME')[1] - SLOTS_COUNT_SECONDS)
    if found_bound == 0 then found_bound = -bound end
    bound = found_bound
  end
  local length = limit > 0 and redis.call('LLEN', queue) or 0
  if limit > 0 and length >= limit then return {'backlog', length} end
  if length >= BYTES_FROM_MESSAGES and #message * limit > backlog_bytes then
    local bytes = redis.pcall('MEMORY', 'USAGE', queue, 'SAMPLES', '5') -- not for every user of Redis
    if type(bytes) == 'number' and bytes > backlog_bytes then return {'bytes', bytes} end
  end
  if is_clear() then return end
  local bytes = tonumber(redis.call('GET', stored .. ':bytes') or 0)
  if bytes > stored_bytes_most then
    local clock = redis.call('TIME')
    bytes = stored_bytes(stored, clock[1] * 1000 + math.floor(clock[2] / 1000))
    if bytes > stored_bytes_most then return {'stored', bytes} end
  end
end
