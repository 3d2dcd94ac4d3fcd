-- What a worker saw of a module.
-- bearable_ms: how long the module may say that it is not ready.
-- keys: breaker
-- args: worker, verdict, longest_ms, bearable_ms
-- include: now, breaker/probing

return breaker_probed(breaker, now, worker, verdict, tonumber(longest_ms), tonumber(bearable_ms))
