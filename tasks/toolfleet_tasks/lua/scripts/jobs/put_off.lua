-- A job cannot be read here: another worker may, with another key or of a newer version.
-- at: its place as it was read. due_ms: when to look again.
-- seconds: for so long nobody may have read it before nobody looks any more; then it is kept for as long once more.
-- keys: job, due_jobs
-- args: id, at, due_ms, seconds
-- include: now

if redis.call('HGET', job, 'at') ~= at or not redis.call('ZSCORE', due_jobs, id) then return 0 end
redis.call('HSETNX', job, 'unread', now)
if now - (tonumber(redis.call('HGET', job, 'unread')) or now) < seconds * 1000 then
  redis.call('ZADD', due_jobs, due_ms, id)
  return 0
end
redis.call('EXPIRE', job, seconds)
return redis.call('ZREM', due_jobs, id)
