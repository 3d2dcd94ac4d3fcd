-- A worker cannot connect to a module.
-- live: the workers that live. why: '' if that is not known.
-- keys: breaker
-- args: worker, longest_ms, why, live...
-- include: now, breaker/probing

return breaker_unreached(breaker, now, worker, live, tonumber(longest_ms), why)
