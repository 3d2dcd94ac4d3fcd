-- Notes when API keys were used: not of those that are gone, and not what is less than `seconds` after the last note.
-- keys: keys, used
-- args: seconds, noted(id, at)...

for _, each in ipairs(noted) do
  local last = tonumber(redis.call('HGET', used, each.id) or '0')
  if each.at - last >= tonumber(seconds) and redis.call('HEXISTS', keys, each.id) == 1 then
    redis.call('HSET', used, each.id, each.at)
  end
end
