-- Removes what is kept of the calls of a user. Answers of how many.
-- contents: the key of a call's, but for the call's id at its end.
-- keys: stored
-- args: contents
-- include: storage/stored

local calls = 0
for _, member in ipairs(redis.call('ZRANGE', stored, 0, -1)) do
  local call_id = string.match(member, '^contents:(.+) %d+$')
  if call_id then
    calls = calls + redis.call('DEL', contents .. call_id)
    stored_forget(stored, member)
  end
end
return calls
