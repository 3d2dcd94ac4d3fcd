-- Has an attempt go to another of its module's processes; nothing was sent yet to that one.
-- replica: that process, '' where the module has one address.
-- keys: record
-- args: token, replica
-- constants: REPLICAS_SINCE

local found = redis.call('HMGET', record, 'token', 'so_far', 'scattered')
if found[1] ~= token then return 0 end
local is_scattered = found[3] == '1' or (found[2] or 'none') ~= 'none'
redis.call('HSET', record, 'replica', replica, 'scattered', is_scattered and '1' or '', 'v', REPLICAS_SINCE)
return is_scattered and 2 or 1
