-- Gives the data that Redis has a name, unless it has one. Returns which it has.
-- keys: data_id
-- args: name

redis.pcall('SET', data_id, name, 'NX') -- a replica takes nothing
return redis.call('GET', data_id)
