-- `trail_added(kind, number, ...)`: notes in the record a part of the call's time, of a call to which more happens than that it
--   runs once: words with a space between, and `;`. They are bounded.
-- `held_by(holder)`: when (ms, by the fleet's clock) a token was made to claim the call, and by which worker; 0 and '-' if it does
--   not say.
-- `word(text)`: the first word of it, of signs that JSON takes as they are.
-- `replica_of()`: which of its module's processes has the call, as a word.
-- `trail_read()`: what the record knows of it, as it goes into the audit line; '' for nothing.
-- constants: TRAIL_BYTES

local function word(text)
  local said = string.gsub(string.match(text or '', '^%S+') or '', '[^%w%.@:/_%-]', '_')
  return said == '' and '-' or said
end

local function held_by(holder)
  local micros, worker = string.match(holder or '', '~(%x+)~(.*)$')
  return math.floor((tonumber(micros or '0', 16) or 0) / 1000), word(worker)
end

local function replica_of()
  return word(redis.call('HGET', record, 'replica') or '')
end

local function trail_added(kind, ...)
  local trail = (redis.call('HGET', record, 'trail') or '') .. table.concat({kind, ...}, ' ') .. ';'
  if #trail <= TRAIL_BYTES then redis.call('HSET', record, 'trail', trail) end
end

local function trail_read()
  local found, said = redis.call('HMGET', record, 'trail', 'polls', 'replica'), ''
  if found[1] then said = said .. ',"trail":"' .. string.gsub(found[1], '[^%w%.@:/_%- ;]', '_') .. '"' end
  if found[2] then said = said .. ',"polls":' .. (tonumber(found[2]) or 0) end
  if found[3] and found[3] ~= '' then said = said .. ',"replica":"' .. word(found[3]) .. '"' end
  return said
end
