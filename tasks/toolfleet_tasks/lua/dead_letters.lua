-- Dead letters. Those of a kind are a hash, id -> letter, and a sorted set, id -> when it died (ms); for events that were never
-- accepted, which `wakeups` writes, a counter has their size in bytes. While a call's letter is replayed, the hash has a second
-- field for it, `<call id>/replay`: until when (s) no other replay may start. No id has a slash.
-- include: clock

-- Forgets a letter, 1 if it was there. `bytes` counts what all of them take; it may be nil.
local function letter_forget(letters, order, bytes, id)
  local size = bytes and redis.call('HSTRLEN', letters, id)
  local found = redis.call('ZREM', order, id) + redis.call('HDEL', letters, id)
  redis.call('HDEL', letters, id .. '/replay')
  if bytes and redis.call('EXISTS', letters) == 0 then
    redis.call('DEL', bytes)
  elseif bytes and size > 0 then
    redis.call('DECRBY', bytes, size)
  end
  return math.min(found, 1)
end

-- Keeps a letter, and of all letters the `kept` latest ones. `now` is in ms. `log`, which may be left out, is the ledger's log of
-- the call's attempts: it counts more than the attempts in the letter, which whoever wrote it may not have known.
-- A letter that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function bury(dead_key, order_key, id, now, letter, kept, log)
  if log and log ~= '' then letter = log .. '\n' .. letter end
  local noted = redis.pcall('ZADD', order_key, now, id)
  if type(noted) == 'table' then return end
  local written = redis.pcall('HSET', dead_key, id, letter)
  if type(written) == 'table' then
    redis.call('ZREM', order_key, id)
    return
  end
  local over = math.min(redis.call('ZCARD', order_key) - kept, 500) -- after a lower limit the rest goes by and by
  if over < 1 then return end
  for _, oldest in ipairs(redis.call('ZRANGE', order_key, 0, over - 1)) do
    letter_forget(dead_key, order_key, nil, oldest)
  end
end

-- script: bury_ended(record, dead, dead_order; call_id, letter, kept)
-- Keeps the letter of a call that has ended already, and of all letters the `kept` latest ones.
bury(dead, dead_order, call_id, now, letter, tonumber(kept), redis.call('HGET', record, 'log'))
return 1

-- script: drop(letters, order, size?; ids...)
-- Forgets letters. Returns the ids of those that were there.
local dropped = {}
for _, id in ipairs(ids) do
  if letter_forget(letters, order, size, id) == 1 then dropped[#dropped + 1] = id end
end
return dropped

-- script: take(dead; call_id, seconds)
-- Begins a replay, unless one runs. seconds: after these it surely runs no more.
local letter = redis.call('HGET', dead, call_id)
if not letter then return false end
local at = tonumber(redis.call('TIME')[1])
local rest = tonumber(redis.call('HGET', dead, call_id .. '/replay') or 0) - at
if rest > 0 then return {letter, rest} end
redis.call('HSET', dead, call_id .. '/replay', at + seconds)
return {letter, 0}

-- script: settle(dead, dead_order; call_id, replay_id, succeeded)
-- Ends a replay. A letter is dropped if its replay succeeded, or is a dead letter itself and so stands for it.
-- replay_id: the replay's own call, '' if it was not published. succeeded: '1' or '0'.
if succeeded == '1' or (replay_id ~= '' and redis.call('HEXISTS', dead, replay_id) == 1) then
  letter_forget(dead, dead_order, nil, call_id)
  return 1
end
redis.call('HDEL', dead, call_id .. '/replay')
return 0
