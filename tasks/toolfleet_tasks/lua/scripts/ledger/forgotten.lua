-- `forget(record, token)`: takes back a claim that was made as the call's message was taken, and of which nothing has come: the
-- record has nothing else. token: also without what follows the message's tag. Whatever other key is there stays.

local function forget(record, token)
  local held = redis.pcall('HGET', record, 'token')
  if type(held) ~= 'string' or (held ~= token and string.sub(held, 1, #token + 1) ~= token .. '~') then return 0 end
  return redis.call('DEL', record)
end
