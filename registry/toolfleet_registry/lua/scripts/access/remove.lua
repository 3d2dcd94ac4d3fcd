-- Forgets API keys. Returns those of them that there were.
-- new: the revision from then on, if there was one.
-- keys: keys, used, revision
-- args: new, ids...

local removed = {}
for _, id in ipairs(ids) do
  redis.call('HDEL', used, id)
  if redis.call('HDEL', keys, id) == 1 then removed[#removed + 1] = id end
end
if #removed > 0 then redis.call('SET', revision, new) end
return removed
