-- One approval as it stands, with where its call is in the ledger.
-- keys: approval, record

local found = redis.call('HMGET', approval, 'state', 'revision', 'request', 'call', 'expires_ms', 'votes', 'journal',
  'trace')
if not found[1] then return {} end
local ledger = redis.call('HMGET', record, 'state', 'begun', 'may_begin')
found[9] = ledger[1] == 'done' and 'done' or ledger[3] and 'published' or tonumber(ledger[2] or 0) > 0 and 'begun' or ''
for i = 1, 9 do found[i] = found[i] or '' end
return found
