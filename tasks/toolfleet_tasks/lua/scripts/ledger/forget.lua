-- Takes back a claim that was made as the call's message was taken: nothing was sent, and nobody has begun it before.
-- keys: record
-- args: token
-- include: ledger/forgotten

return forget(record, token)
