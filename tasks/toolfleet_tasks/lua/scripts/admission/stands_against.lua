-- `stands_against()`: what stands against a call, but for limits and room; nil for nothing. Changes nothing, but for a call that
-- waits for another one's result.
-- `digest`: with an idempotency key, of what the call would do. `run_id()`: which server this is. `is_clear()`: whether there is
-- neither a record of the call, nor a breaker, nor a count of stored results: so it is nearly always, and one question says it.
-- include: consumers/unserved, breaker/state

local READERS_MARGIN_SECONDS = 60
local FORSAKEN_SECONDS = 5 -- after the deadline of a key's call: clocks differ
local PATIENCE_MS = 2000 -- in its queue a call waits for so long for a module that is away: a restart takes no longer
local digest, asked_at
if intention ~= '' then digest, asked_at = string.match(intention, '^(%S+) ?(%d*)') end

-- Another server than the one that answers now may have had a record that this one has not.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '-'
end

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

local clear
local function is_clear()
  if clear == nil then clear = redis.call('EXISTS', record, breaker, stored .. ':bytes') == 0 end
  return clear
end

local function stands_against()
  if not is_clear() and redis.call('EXISTS', record) == 1 then return {'ended', call_id} end
  local joined = joins()
  if joined then return joined end
  if needs_worker == '1' then
    -- Who may not read the notes knows nothing, and lets the call in.
    local is_known, ms = pcall(unserved_ms, string.match(slots, '^(.*)slots:%a+$'), queue)
    if is_known and ms >= 0 then return {'unserved', ms} end
  end
  if not is_clear() and redis.call('EXISTS', breaker) == 1 then
    local clock = redis.call('TIME')
    local now_ms = clock[1] * 1000 + clock[2] / 1000
    local rest = breaker_rest(breaker, now_ms)
    if rest > 0 and rest > math.min(PATIENCE_MS, deadline * 1000 - now_ms) then return {'open', rest} end
  end
end
