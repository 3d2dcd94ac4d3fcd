-- `trail_cut(number, holder)`: as `trail_read`, of a call that ends from outside, with the attempt that whoever holds this token
-- runs on; false: nobody does.
-- include: now, ledger/trail

local function trail_cut(number, holder)
  if holder then
    local claimed, worker = held_by(holder)
    trail_added('cut', number, claimed, now, now, worker, replica_of())
  end
  return trail_read()
end
