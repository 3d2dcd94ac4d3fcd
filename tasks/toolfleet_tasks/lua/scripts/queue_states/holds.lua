-- `state_holds(states, module, lane, state)`: whether a state holds for a module's queue, by itself or by its lane. What cannot
-- be read holds for nobody. Changes nothing.

local function state_holds(states, module, lane, state)
  local found = redis.pcall('HMGET', states, module, 'lane:' .. lane)
  if type(found) ~= 'table' or found.err then return false end
  for i = 1, 2 do
    if found[i] and string.match(found[i], '"state":"(%a+)"') == state then return true end
  end
  return false
end
