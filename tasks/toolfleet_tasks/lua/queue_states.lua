-- Which queues and lanes operators have paused or drain, each with a text that says so.

-- Whether a state holds for a module's queue, by itself or by its lane. What cannot be read holds for nobody. Changes nothing.
local function state_holds(states, module, lane, state)
  local found = redis.pcall('HMGET', states, module, 'lane:' .. lane)
  if type(found) ~= 'table' or found.err then return false end
  for i = 1, 2 do
    if found[i] and string.match(found[i], '"state":"(%a+)"') == state then return true end
  end
  return false
end

-- script: change(states; name, state, text)
-- Has a state hold for a queue or a lane from now on, or none. One that holds already stays as it is, with its time and reason.
-- state: `paused` or `draining`, '' for none; text: what is stored of it.
local before = redis.call('HGET', states, name) or ''
local held = string.match(before, '"state":"(%a+)"') or ''
if before ~= '' and held == state then return {0, before} end
if state == '' then return {redis.call('HDEL', states, name), before} end
redis.call('HSET', states, name, text)
return {1, before}
