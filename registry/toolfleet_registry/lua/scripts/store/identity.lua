-- Tells the registry's identity, which is this one from now on if it has none.
-- keys: revision
-- args: identity

redis.call('HSETNX', revision, 'identity', identity)
return redis.call('HGET', revision, 'identity')
