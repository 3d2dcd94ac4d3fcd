-- Returns the revision of agents' profiles, and all of them; nothing if the revision is the one that is known.
-- Of a Redis that has lost it while there are profiles every reading is of another one.
-- keys: entries, revision
-- args: known

local found = redis.call('GET', revision)
if found and found == known then return false end
if not found then
  found = redis.call('EXISTS', entries) == 1 and 'lost' or 'none'
  if found == 'none' and known == 'none' then return false end
end
return {found, redis.call('HGETALL', entries)}
