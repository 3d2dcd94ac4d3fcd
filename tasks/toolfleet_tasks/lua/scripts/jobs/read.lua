-- A job, and what its call came to.
-- job_prefix, call_prefix, result_prefix: what the names of jobs, of calls and of results begin with.
-- args: job_prefix, call_prefix, result_prefix, id
-- include: now, jobs/view

return {now, view(id, true)}
