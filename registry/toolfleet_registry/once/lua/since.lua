-- Tells since when this server is the one that answers, and when something was last written to be kept for how long.
-- keys: replies
-- args: run_id, now_s

if redis.call('HGET', replies, 'run_id') ~= run_id then
  redis.call('HSET', replies, 'run_id', run_id, 'since', now_s)
end
local known = redis.call('HGETALL', replies)
local poll_values = {}
for at = 1, #known, 2 do
  if known[at] ~= 'run_id' then
    poll_values[#poll_values + 1] = known[at]
    poll_values[#poll_values + 1] = known[at + 1]
  end
end
return poll_values
