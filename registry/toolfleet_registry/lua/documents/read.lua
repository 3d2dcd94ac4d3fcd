-- Returns the revision of documents, and all that are in force; nothing if the revision is the one that is known.
-- A Redis that has lost the revision while there are documents always returns them.
-- keys: entries, revision
-- args: known

local found = redis.call('GET', revision)
if found and found == known then return false end
if not found then
  found = redis.call('EXISTS', entries) == 1 and 'lost' or 'none'
  if found == 'none' and known == 'none' then return false end
end
return {found, redis.call('HGETALL', entries)}
