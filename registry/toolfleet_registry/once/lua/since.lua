-- Returns all fields: since when this server is the one that answers, and when something was last written to be kept for how long.
-- keys: replies
-- args: run_id, now_s

if redis.call('HGET', replies, 'run_id') ~= run_id then
  redis.call('HSET', replies, 'run_id', run_id, 'since', now_s)
end
return redis.call('HGETALL', replies)
