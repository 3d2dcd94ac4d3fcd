-- Removes what hosts have said that are gone, if it still is what was read.
-- keys: hosts, heartbeats, revision
-- args: channel, members(member, value)...
-- include: directory/changed

for _, gone in ipairs(members) do
  if not redis.call('ZSCORE', heartbeats, gone.member) and redis.call('HGET', hosts, gone.member) == gone.value then
    redis.call('HDEL', hosts, gone.member)
    changed(string.match(gone.member, '^%S*'))
  end
end
return 0
