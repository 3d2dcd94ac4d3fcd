-- Where a call is.
-- keys: record

local found = redis.call('HMGET', record, 'state', 'token', 'begun', 'accepted')
if not found[1] and found[2] == 'asked' then return 'input_required' end
if not found[1] and found[2] == 'approval' then return 'waiting_approval' end
return found[1] or ((found[2] or found[4]) and 'running') or (found[3] and 'retrying') or 'queued'
