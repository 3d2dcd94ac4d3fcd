-- Takes jobs that are due; nobody else gets them before the lease is over. An id without a job is forgotten.
-- job_prefix, call_prefix, result_prefix: what the names of jobs, of calls and of results begin with.
-- fleet_ms: the fleet's time.
-- keys: due_jobs
-- args: job_prefix, call_prefix, result_prefix, count, lease_ms, fleet_ms
-- include: now, jobs/view

local answer = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due_jobs, '-inf', fleet_ms, 'LIMIT', 0, count)) do
  local found = view(id)
  if found then
    redis.call('ZADD', due_jobs, fleet_ms + lease_ms, id)
    answer[#answer + 1] = found
  else
    redis.call('ZREM', due_jobs, id)
  end
end
return answer
