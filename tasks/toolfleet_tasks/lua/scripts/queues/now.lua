-- `now`: the server's time in seconds, as text that keeps the microseconds.

local clock = redis.call('TIME')
local now = string.format('%d.%06d', clock[1], clock[2])
