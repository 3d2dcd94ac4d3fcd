-- The same as `admission/admit` for a call that counts in limits of its caller's, from now on until it ends with nothing done.
-- intent: the record where it has no idempotency key. held: where its limits are noted.
-- until_ms: by the agent's clock; then the call must have begun, or counts no longer.
-- Of each limit: daily: how many calls a day, 0 for any number; cooldown: ms; total: how many calls in all, -1 for any number, and
--   then kept for so many ms after the last.
-- keys: queue, notify_key, breaker, caller_limit, stored, slots, record, queue_states, intent, held, limits...
-- args: call_id, deadline, message, limit, bound, keep_ms, intent_seconds, intention, backlog_bytes, stored_bytes_most
-- args: needs_worker, until_ms, terms(daily, cooldown, total, kept)...
-- include: overload/caller_limit, limits/limits, admission/publish, admission/decided

local now
until_ms = tonumber(until_ms)

local function is_limited()
  if redis.call('EXISTS', held) == 1 then return end
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  return limits_refuse(limits, terms, now)
end

local function judged()
  return stands_against() or is_limited() or is_full()
end

local function take_limits()
  for i, key in ipairs(limits) do limit_take(key, call_id, terms[i], now, until_ms) end
  local keep = until_ms - now - 1 -- it is gone when the call counts no longer
  if keep > 0 then redis.call('SET', held, table.concat(limits, ' '), 'PX', keep) end
end

local function let_in()
  if caller_take(caller_limit, call_id, deadline, bound, tonumber(keep_ms)) == 0 then return {'share', bound} end
  if now then take_limits() end
  return publish()
end

local function undo()
  for _, key in ipairs(limits) do
    redis.pcall('ZREM', key, call_id)
    redis.pcall('ZREM', key .. ':unbegun', call_id)
  end
  redis.pcall('DEL', held)
end

return decided(judged, let_in, undo)
