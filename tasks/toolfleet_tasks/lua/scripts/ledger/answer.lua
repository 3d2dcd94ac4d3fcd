-- Takes an answer to what a call asks, once, and puts the call into its queue with it.
-- round: the question's number. digest: the answer's.
-- message: the whole message for its queue, '' if another broker has that: then question and text stay, for whoever
--   must send it again.
-- keys: record, queue, notify_key
-- args: round, digest, message
-- include: now, ledger/trail

local found = redis.call('HMGET', record, 'state', 'token', 'round', 'answered')
if found[1] == 'done' then return 'ended' end
if not found[3] then return redis.call('EXISTS', record) == 1 and 'not_asked' or 'unknown' end
local asked, answered = tonumber(found[3]), found[4] or ''
round = tonumber(round)
local said = string.match(answered, ';' .. round .. ' (%x+)')
if said then return said == digest and 'again' or 'answered' end
if round ~= asked or found[2] ~= 'asked' then return 'not_asked' end
redis.call('HSET', record, 'answered', answered .. ';' .. round .. ' ' .. digest)
redis.call('HDEL', record, 'token', 'lease', 'as', 'granted')
trail_added('answered', round, now)
if message ~= '' then
  redis.call('HDEL', record, 'question', 'message')
  redis.call('LPUSH', queue, message)
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
end
return 'taken'
