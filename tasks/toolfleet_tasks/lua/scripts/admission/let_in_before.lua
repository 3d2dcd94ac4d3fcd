-- A call that may have been let in already, its answer lost: then nothing is done, whatever stands against it by now. A call is in
-- its caller's calls from the step that publishes it until its end, so that there is no need for another note of it.

if redis.call('ZSCORE', caller_limit, call_id) then return 0 end
