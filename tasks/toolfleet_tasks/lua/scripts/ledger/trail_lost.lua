-- `trail_lost(number, holder, seen)`: notes the attempt of a worker of which nothing was heard after `seen` (ms).
-- include: now, ledger/trail

local function trail_lost(number, holder, seen)
  local claimed, worker = held_by(holder)
  trail_added('lost', number, claimed, seen, now, worker, replica_of())
end
