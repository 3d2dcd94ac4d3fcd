-- `is_draining()`: whether an operator has the call's queue take no new calls.
-- include: queue_states/holds

local function is_draining()
  if redis.call('EXISTS', queue_states) == 0 then return false end
  return state_holds(queue_states, string.match(breaker, '[^:]*$'), string.match(slots, '%a+$'), 'draining')
end
