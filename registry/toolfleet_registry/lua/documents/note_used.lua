-- Notes when documents were used: not of those that are gone, and not what is less than `seconds` after the last note.
-- keys: entries, used
-- args: seconds, noted(name, at)...

for _, each in ipairs(noted) do
  local last = tonumber(redis.call('HGET', used, each.name) or '0')
  if each.at - last >= tonumber(seconds) and redis.call('HEXISTS', entries, each.name) == 1 then
    redis.call('HSET', used, each.name, each.at)
  end
end
