-- A reader leaves: what he has not read to the end is the next one's.
-- keys: stream, users
-- args: group, consumer
-- include: wakeups/streams

local left = 0
for _, key in ipairs((streams_of(stream, users))) do
  local found = redis.pcall('XPENDING', key, group, '-', '+', 10, consumer)
  if not found.err then
    for _, one in ipairs(found) do
      redis.call('XCLAIM', key, group, 'nobody', 0, one[1], 'IDLE', 86400000, 'JUSTID')
    end
    redis.call('XGROUP', 'DELCONSUMER', key, group, consumer)
    left = left + #found
  end
end
return left
