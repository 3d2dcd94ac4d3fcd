-- `stands_against()`: what stands against a call, but for limits and room; nil for nothing. Changes nothing, but for a call that
-- waits for another one's result.
-- `is_clear()`: whether there is neither a record of the call, nor a breaker, nor a count of stored results, nor a queue that an
-- operator has paused or drains. So it is nearly always, and one question says it.
-- include: admission/intention
-- lazily: admission/joins(joins), consumers/unserved(unserved_ms), breaker/state(breaker_rest, breaker_why)
-- lazily: admission/is_draining(is_draining)

local PATIENCE_MS = 2000 -- in its queue a call waits for so long for a module that is away: a restart takes no longer

local clear
local function is_clear()
  if clear == nil then clear = redis.call('EXISTS', record, breaker, stored .. ':bytes', queue_states) == 0 end
  return clear
end

local function stands_against()
  if not is_clear() and redis.call('EXISTS', record) == 1 and not redis.call('HGET', record, 'may_begin') then
    return {'ended', call_id} -- what people have approved has a record before it is published
  end
  local joined = digest and joins()
  if joined then return joined end
  if not is_clear() and is_draining() then return {'draining', 0} end
  if needs_worker == '1' then
    -- Who may not read the notes knows nothing, and lets the call in.
    local is_known, ms = pcall(unserved_ms, string.match(slots, '^(.*)slots:%a+$'), queue)
    if is_known and ms >= 0 then return {'unserved', ms} end
  end
  if not is_clear() and redis.call('EXISTS', breaker) == 1 then
    local clock = redis.call('TIME')
    local now_ms = clock[1] * 1000 + clock[2] / 1000
    local rest = breaker_rest(breaker, now_ms)
    if rest > 0 and rest > math.min(PATIENCE_MS, deadline * 1000 - now_ms) then return {'open', rest, breaker_why(breaker)} end
  end
end
