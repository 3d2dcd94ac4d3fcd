-- Forgets news that wait for a try. One that is under way may still be accepted; nobody begins another one.
-- job: that of whose end they are; their own key where there is none. outcome, outcome_under_way: what the job keeps of it.
-- keys: wake, due, job, clock_key
-- args: id, outcome, outcome_under_way
-- include: wakeups/now, wakeups/put, wakeups/outcome

local kind = redis.call('HGET', wake, 'kind')
if not kind then return 0 end
local due_of_kind = due_set(due, kind, id)
local is_tried = redis.call('HEXISTS', wake, 'token') == 1 and tonumber(redis.call('ZSCORE', due_of_kind, id) or 0) > now
redis.call('ZREM', due_of_kind, id)
redis.call('DEL', wake)
outcome_noted(job, is_tried and outcome_under_way or outcome)
return is_tried and 2 or 1
