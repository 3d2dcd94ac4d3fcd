-- An entry was read. outcome: what the job keeps of it, '' for nothing.
-- keys: stream, job
-- args: group, entry_id, outcome
-- include: wakeups/outcome

redis.pcall('XACK', stream, group, entry_id)
local found = redis.pcall('XDEL', stream, entry_id)
if found == 1 then outcome_noted(job, outcome) end
return found
