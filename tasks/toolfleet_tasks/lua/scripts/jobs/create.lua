-- Makes a job, unless its user has too many.
-- due_jobs: those of all users, by when (ms) they are due. users_jobs: its user's.
-- limit: how many its user may have. workflow: its workflow's mark, or ''.
-- keys: job, due_jobs, users_jobs
-- args: id, spec, at, due_ms, limit, workflow
-- include: now

local found = redis.call('HMGET', job, 'spec', 'at', 'told', 'end', 'end_signature')
if found[1] then return {'exists', unpack(found)} end
limit = tonumber(limit)
if redis.call('ZCARD', users_jobs) >= limit then
  -- What is due nowhere is no job any more: somebody has damaged its record, or Redis has lost it.
  for _, other in ipairs(redis.call('ZRANGE', users_jobs, 0, -1)) do
    if not redis.call('ZSCORE', due_jobs, other) then redis.call('ZREM', users_jobs, other) end
  end
  local count = redis.call('ZCARD', users_jobs)
  if count >= limit then return {'full', tostring(count)} end
end
redis.call('ZADD', due_jobs, due_ms, id)
redis.call('ZADD', users_jobs, now, id)
redis.call('HSET', job, 'spec', spec, 'at', at)
if workflow ~= '' then redis.call('HSET', job, 'workflow', workflow) end
return {'made'}
