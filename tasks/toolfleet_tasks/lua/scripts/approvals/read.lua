-- One approval as it stands, with where its call is in the ledger.
-- keys: approval, record
-- include: approvals/place

local found = redis.call('HMGET', approval, 'state', 'revision', 'request', 'call', 'expires_ms', 'votes', 'journal',
  'trace', 'trimmed')
if not found[1] then return {} end
found[10] = approval_place(record)
for i = 1, 10 do found[i] = found[i] or '' end
return found
