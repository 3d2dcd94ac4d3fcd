-- Tells what is stored of tools; of their specifications, only the mark of a rollback.
-- names: at most 1,000.
-- keys: tools
-- args: names...

local heads = {}
for i, value in ipairs(redis.call('HMGET', tools, unpack(names))) do
  local head = value and string.match(value, '^[01]\n[^\n]*\n[^\n]*\n[^\n]*\n') or ''
  heads[i] = head .. (value and string.match(value, '^{"rolled_back_from":([^\t]*),\t', #head + 1) or '')
end
return heads
