-- `breaker_pass(key, now, can_reach)`: as `breaker_rest`, for a call that begins now; then whether more will be known at once, so
-- that it should wait; and the breaker's state. `can_reach`: whether the worker can connect to the module, as far as it knows.
-- include: breaker/state
-- constants: GLANCE_MS

local function breaker_pass(key, now, can_reach)
  local kind, rest, is_soon = breaker_state(key, now)
  if kind == 'due' or (kind ~= 'open' and not can_reach) then return GLANCE_MS, true, kind end
  if kind ~= 'half' then return rest, false, kind end
  if rest > 0 then return is_soon and math.min(rest, GLANCE_MS) or rest, is_soon, kind end
  if tonumber(redis.call('HGET', key, 'tokens')) > 0 then redis.call('HINCRBY', key, 'tokens', -1) end
  redis.call('HSET', key, 'let_in_at', now)
  return 0, false, kind
end
