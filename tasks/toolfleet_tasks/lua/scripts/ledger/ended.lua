-- `ended(ttl, nothing_happened, letter, kept, log)`: what every call's end does beside the result. The call counts no longer, and
-- an intention that came to nothing is open again.
-- include: now, overload/caller_limit, audit
-- lazily: dead_letters/bury(bury), limits/give_back(limits_return)

local function ended(ttl, nothing_happened, letter, kept, log)
  redis.call('EXPIRE', record, ttl)
  if caller_limit ~= record then caller_leave(caller_limit, call_id) end
  if nothing_happened and intent ~= record then
    local holder = redis.call('GET', intent)
    if holder and string.match(holder, '^%S+') == call_id then redis.call('DEL', intent) end
  end
  if nothing_happened then
    limits_return(string.sub(record, 1, -#call_id - 6) .. 'held:' .. call_id, call_id) -- beside `call:`
  end
  if letter ~= '' then bury(dead, dead_order, call_id, now, letter, kept, log) end
end
