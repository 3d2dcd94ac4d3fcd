-- What a worker shall do about a module.
-- probe_ms: how long it may look. has_others: '1' if other workers live.
-- keys: breaker
-- args: worker, probe_ms, has_others
-- include: now, breaker/probing

return {breaker_ask(breaker, now, worker, tonumber(probe_ms), has_others == '1')}
