-- Somebody has accepted an event: whoever tries to deliver it meanwhile need not any more.
-- job: that of whose end it is; the wake-up's own key where there is none. outcome: what the job keeps of it.
-- keys: wake, due, job
-- args: id, outcome
-- include: wakeups/outcome

redis.call('ZREM', due, id)
local found = redis.call('DEL', wake)
outcome_noted(job, outcome)
return found
