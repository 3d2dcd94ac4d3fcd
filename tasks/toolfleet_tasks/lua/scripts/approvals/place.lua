-- `approval_place(record)`: where the call is in the ledger: '' while it waits, `published`, `begun` or `done`.

local function approval_place(record)
  local ledger = redis.call('HMGET', record, 'state', 'begun', 'may_begin')
  return ledger[1] == 'done' and 'done' or ledger[3] and 'published' or tonumber(ledger[2] or 0) > 0 and 'begun' or ''
end
