-- `trail_finished(is_last)`: as `trail_read`; `is_last`: with the attempt that ends now, if there is a trail.
-- include: now, ledger/trail

local function trail_finished(is_last)
  local how, ms = string.match(outcome, '^(%S+) (%d+)')
  if is_last and how and redis.call('HEXISTS', record, 'trail') == 1 then
    local claimed, worker = held_by(token)
    trail_added('attempt', attempt, claimed, ms, now, how, worker, replica_of())
  end
  return trail_read()
end
