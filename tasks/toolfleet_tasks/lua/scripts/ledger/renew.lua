-- Begins leases anew. A record that is not there any more is written anew.
-- running: the calls that run in its module, or the record where the module has no bound.
-- granted: what the claim was granted for. so_far: what earlier attempts may have done.
-- keys: calls(record, running)...
-- args: lease_ms, claims(token, call_id, granted, begun, effect, so_far, seconds, replica, scattered)...
-- constants: REPLICAS_SINCE
-- include: now, overload/running

local until_ms, lost = now + lease_ms, {}
for i, claim in ipairs(claims) do
  local record, running = calls[i].record, calls[i].running
  local holder = redis.call('HGET', record, 'token')
  if holder == claim.token then
    redis.call('HSET', record, 'lease', until_ms)
    if running ~= record then running_renew(running, claim.call_id, until_ms) end
  elseif holder or redis.call('EXISTS', record) == 1 then
    lost[#lost + 1] = claim.token
    -- Ended from outside: it has kept its place in the module until its worker hears of it, which is now.
    if not holder and running ~= record then running_leave(running, claim.call_id) end
  else
    -- Redis has lost it, and may have kept the call's message, which must not be begun beside ours.
    redis.call('HSET', record, 'token', claim.token, 'lease', until_ms, 'as', claim.granted, 'begun', claim.begun,
      'effect', claim.effect, 'so_far', claim.so_far)
    if claim.granted == 'accepted' then -- as `ledger/claim` writes it
      redis.call('HSET', record, 'as', 'busy', 'granted', 'accepted')
    end
    if claim.replica ~= '' or claim.scattered ~= '' then
      redis.call('HSET', record, 'replica', claim.replica, 'scattered', claim.scattered, 'v', REPLICAS_SINCE)
    end
    redis.call('EXPIRE', record, claim.seconds)
  end
end
return lost
