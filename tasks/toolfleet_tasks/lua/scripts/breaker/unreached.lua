-- A worker cannot connect to a module.
-- live: the workers that live.
-- keys: breaker
-- args: worker, longest_ms, live...
-- include: now, breaker/probing

return breaker_unreached(breaker, now, worker, live, tonumber(longest_ms))
