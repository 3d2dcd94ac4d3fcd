-- `joins()`: what is found under a call's idempotency key; nil if the call may be let in. Changes nothing, but for a call that
-- waits for another one's result.
-- include: admission/intention, admission/run_id

local READERS_MARGIN_SECONDS = 60
local FORSAKEN_SECONDS = 5 -- after the deadline of a key's call: clocks differ

-- Whoever was let in with the key died before the call was published, or no worker has had it, and none will begin it.
local function is_forsaken(holder, until_s, server)
  local now = math.min(redis.call('TIME')[1], tonumber(asked_at) or 0) -- either clock may have been set
  if not tonumber(until_s) or now - FORSAKEN_SECONDS <= tonumber(until_s) then return false end
  local others = string.sub(record, 1, -#call_id - 1) .. holder
  return server ~= '-' and server == run_id() and redis.call('EXISTS', others) == 0
end

local function joins()
  local found = digest and redis.call('GET', intent)
  if not found then return end
  local holder, same, until_s, server = string.match(found, '^(%S+) (%S+) ?(%S*) ?(%S*)')
  if holder == call_id or is_forsaken(holder, until_s, server) then return end
  if same ~= digest then return {'conflict', holder or ''} end
  -- The text of a result stays for those who wait for it.
  local readers = string.sub(record, 1, -#call_id - 6) .. 'readers:' .. holder
  redis.call('SADD', readers, call_id)
  local seconds = math.max(math.ceil(deadline - redis.call('TIME')[1]), 0) + READERS_MARGIN_SECONDS
  if redis.call('TTL', readers) < seconds then redis.call('EXPIRE', readers, seconds) end
  return {'joined', holder}
end
