-- Begins leases anew. Refused when Redis takes no writes, also without a tag.
-- keys: unacked_index
-- args: tags...
-- include: queues/refuse_unless_writable, queues/now

local lost = {}
for _, tag in ipairs(tags) do
  if redis.call('ZSCORE', unacked_index, tag) then
    redis.call('ZADD', unacked_index, now, tag)
  else
    lost[#lost + 1] = tag
  end
end
return lost
