-- A reader leaves: what he has not read to the end is the next one's.
-- keys: stream
-- args: group, consumer

local found = redis.pcall('XPENDING', stream, group, '-', '+', 10, consumer)
if found.err then return 0 end
for _, one in ipairs(found) do
  redis.call('XCLAIM', stream, group, 'nobody', 0, one[1], 'IDLE', 86400000, 'JUSTID')
end
redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
return #found
