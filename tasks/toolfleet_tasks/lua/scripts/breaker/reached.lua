-- A worker can connect to a module again.
-- keys: breaker
-- args: worker
-- include: breaker/probing

return breaker_reached(breaker, worker)
