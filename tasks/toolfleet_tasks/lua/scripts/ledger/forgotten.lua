-- `forget(record, token)`: takes back a claim that was made as the call's message was taken, and of which nothing has come: the
-- record has nothing else. Whatever other key is there stays.

local function forget(record, token)
  if redis.pcall('HGET', record, 'token') ~= token then return 0 end
  return redis.call('DEL', record)
end
