-- Changes a job that is where it is thought to be, and writes what its end causes, all or nothing.
-- before, after: the old place and the new one. due_ms: when to look again, '': as it is. poll_values: '': as it is.
-- job_end: '': it is not over. spec: what is kept of it then, for `kept_seconds`. end_signature: '' for none.
-- ended_kept: how many ended jobs are listed, and of its user's kept.
-- is_sent: '1' if its call is now known to be in its queue. is_cancelled: '1' if the job is.
-- stops: '1' if the others of its workflow are not to go on.
-- events: kind (`completion` for one without HTTP), id, body, and the name of its hash or stream.
-- keys: job, due_jobs, users_jobs, users_ended, all_ended, wakes_due, clock_key
-- args: id, before, after, due_ms, poll_values, job_end, spec, kept_seconds, ended_kept, completion_seconds, is_sent, end_signature
-- args: is_cancelled, stops, events(kind, id, body, key)...
-- include: now, clock/fleet_time, wakeups/put

local at = redis.call('HGET', job, 'at')
if at ~= before then return at == after and 1 or 0 end -- sent again, when its answer was lost
if not redis.call('ZSCORE', due_jobs, id) then return 0 end -- taken out of the way
if is_cancelled ~= '1' and redis.call('HEXISTS', job, 'stopped') == 1 then return 0 end
if due_ms ~= '' then redis.call('ZADD', due_jobs, due_ms, id) end
for _, one in ipairs(events) do
  if one.kind == 'completion' then
    completion_put(one.key, one.id, one.body, tonumber(completion_seconds))
  else
    wake_put(one.key, wakes_due, one.id, math.floor(fleet_time(clock_key) / 1000), one.kind, one.body)
  end
end
if after ~= before then
  redis.call('HSET', job, 'at', after)
  redis.call('HDEL', job, 'sent', 'unread')
end
if is_sent == '1' then redis.call('HSET', job, 'sent', now) end
if poll_values ~= '' then redis.call('HSET', job, 'told', poll_values) end
if job_end == '' then return 1 end
redis.call('HSET', job, 'spec', spec, 'end', job_end)
if end_signature ~= '' then redis.call('HSET', job, 'end_signature', end_signature) end
redis.call('HDEL', job, 'told', 'stopped')
redis.call('EXPIRE', job, kept_seconds)
local made = redis.call('ZSCORE', users_jobs, id) or now
redis.call('ZREM', due_jobs, id)
redis.call('ZREM', users_jobs, id)
for i, key in ipairs({users_ended, all_ended}) do
  redis.call('ZADD', key, i == 1 and made or now, id)
  redis.call('EXPIRE', key, kept_seconds)
end
local job_prefix = string.sub(job, 1, -#id - 1)
local workflow = stops == '1' and redis.call('HGET', job, 'workflow')
for _, other in ipairs(workflow and redis.call('ZRANGE', users_jobs, 0, -1) or {}) do
  if redis.call('HGET', job_prefix .. other, 'workflow') == workflow and redis.call('ZSCORE', due_jobs, other) then
    redis.call('HSETNX', job_prefix .. other, 'stopped', id)
    redis.call('ZADD', due_jobs, math.floor(fleet_time(clock_key) / 1000), other)
  end
end
local over = math.min(redis.call('ZCARD', users_ended) - ended_kept, 500)
for _, other in ipairs(over > 0 and redis.call('ZRANGE', users_ended, 0, over - 1) or {}) do
  redis.call('UNLINK', job_prefix .. other)
  redis.call('ZREM', users_ended, other)
  redis.call('ZREM', all_ended, other)
end
redis.call('ZREMRANGEBYRANK', all_ended, 0, -ended_kept - 1)
return 1
