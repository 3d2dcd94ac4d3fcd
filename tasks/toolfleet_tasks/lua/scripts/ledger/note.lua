-- Keeps what a worker knows of a call whose attempt is over, and that it has not ended yet: it asks the module, whose place
-- it leaves.
-- value: Celery's. line_end: the end of the audit line.
-- keys: record, running
-- args: token, call_id, value, line_end

if redis.call('HGET', record, 'token') ~= token then return 0 end
redis.call('HSET', record, 'known', value, 'known_line', line_end)
if running ~= record then redis.call('ZREM', running, call_id) end
return 1
