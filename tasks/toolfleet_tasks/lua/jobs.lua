-- Jobs: those that are under way, by when (ms) they are due, and the record of each.
-- job_prefix, call_prefix, result_prefix: what the names of jobs, of calls and of results begin with.
-- include: clock, wakeups
-- lazily: turns(turn_of_job)

-- Returns id, spec, at, told, `done`, `begun` or '' for the job's call, what is stored of it, when it was confirmed to be in its
-- queue (ms, or ''), and which job has stopped this one (or ''); false where there is no such job.
local function job_view(id, with_result)
  local found = redis.call('HMGET', job_prefix .. id, 'spec', 'at', 'told', 'sent', 'stopped')
  if not found[1] or not found[2] then return false end
  local state, stored = '', ''
  local step = string.match(found[2], '"state":"[sp][to][al][rl]t?ing".*"step":(%d+)')
  if step then
    local call_id = string.match(found[2], '"call_id":"([^"]+)"') or id .. '.' .. step
    local call = redis.pcall('HMGET', call_prefix .. call_id, 'state', 'begun')
    if not call.err then
      state = call[1] or (call[2] and 'begun') or ''
      if state == 'done' and with_result then
        stored = redis.call('HGET', call_prefix .. call_id, 'result') or redis.pcall('GET', result_prefix .. call_id) or ''
        if type(stored) ~= 'string' then stored = '' end
      end
    end
  end
  return {id, found[1], found[2], found[3] or '', state, stored, found[4] or '', found[5] or ''}
end

-- script: create(job, due_jobs, users_jobs; id, spec, at, due_ms, limit, workflow)
-- Makes a job, unless its user has too many. due_jobs: those of all users. users_jobs: its user's.
-- limit: how many its user may have. workflow: its workflow's mark, or ''.
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

-- script: read(; job_prefix, call_prefix, result_prefix, id)
-- A job, and what its call came to.
return {now, job_view(id, true)}

-- script: claim(due_jobs; job_prefix, call_prefix, result_prefix, count, lease_ms, fleet_ms)
-- Takes jobs that are due; nobody else gets them before the lease is over. An id without a job is forgotten.
-- fleet_ms: the fleet's time.
local answer = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due_jobs, '-inf', fleet_ms, 'LIMIT', 0, count)) do
  local found = job_view(id)
  if found then
    redis.call('ZADD', due_jobs, fleet_ms + lease_ms, id)
    answer[#answer + 1] = found
  else
    redis.call('ZREM', due_jobs, id)
  end
end
return answer

-- script: move(job, due_jobs, users_jobs, users_ended, all_ended, wakes_due, clock_key;
--   id, before, after, due_ms, poll_values, job_end, spec, kept_seconds, ended_kept, completion_seconds, is_sent, end_signature,
--   is_cancelled, stops, keeps_turn, events(kind, id, body, key)...)
-- Changes a job that is where it is thought to be, and writes what its end causes, all or nothing.
-- before, after: the old place and the new one. due_ms: when to look again, '': as it is. poll_values: '': as it is.
-- job_end: '': it is not over. spec: what is kept of it then, for `kept_seconds`. end_signature: '' for none.
-- ended_kept: how many ended jobs are listed, and of its user's kept.
-- is_sent: '1' if its call is now known to be in its queue. is_cancelled: '1' if the job is.
-- stops: '1' if the others of its workflow are not to go on. keeps_turn: '1' if it keeps the turn of its first call.
-- events: kind (`completion` for one without HTTP), id, body, and the name of its hash or stream.
local at, kept_turn = unpack(redis.call('HMGET', job, 'at', 'turn'))
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
if kept_turn then
  turn_of_job(string.sub(job, 1, -#id - 5), id .. '.0', kept_turn, keeps_turn == '1', due_ms) -- before `job:`
  if keeps_turn ~= '1' then redis.call('HDEL', job, 'turn') end
end
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

-- script: put_off(job, due_jobs; id, at, due_ms, seconds)
-- A job cannot be read here: another worker may, with another key or of a newer version.
-- at: its place as it was read. due_ms: when to look again.
-- seconds: for so long nobody may have read it before nobody looks any more; then it is kept for as long once more.
if redis.call('HGET', job, 'at') ~= at or not redis.call('ZSCORE', due_jobs, id) then return 0 end
redis.call('HSETNX', job, 'unread', now)
if now - (tonumber(redis.call('HGET', job, 'unread')) or now) < seconds * 1000 then
  redis.call('ZADD', due_jobs, due_ms, id)
  return 0
end
redis.call('EXPIRE', job, seconds)
return redis.call('ZREM', due_jobs, id)
