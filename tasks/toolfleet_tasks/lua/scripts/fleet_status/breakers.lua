-- The breakers that have seen failures.
-- keys: breakers...
-- include: now, breaker/state

local found = {}
for i, key in ipairs(breakers) do
  local kind, rest, _, failures = breaker_state(key, now)
  if kind ~= 'closed' or (failures and failures ~= '0') then
    found[#found + 1] = {i, kind, rest, failures or '0', breaker_why(key)}
  end
end
return found
