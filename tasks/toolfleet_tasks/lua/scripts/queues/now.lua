-- `now`: the server's time in seconds, as text, rounded up: no lease ends before its time. Whole ones, as Redis looks through so
-- short a sorted set from its beginning, and reads each fraction out of a text.

local clock = redis.call('TIME')
local now = string.format('%d', clock[1] + 1)
