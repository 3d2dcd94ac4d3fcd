-- Tells a wake-up's token, for how many ms it is claimed, and '1' if it was acted on; nothing where nobody has claimed it.
-- keys: seen

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = redis.call('HMGET', seen, 'token', 'until', 'done')
if not found[1] then return false end
return {found[1], string.format('%.0f', (tonumber(found[2]) or 0) - now), found[3] and '1' or ''}
