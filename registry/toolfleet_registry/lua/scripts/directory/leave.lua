-- Notes that a host is gone, in good order. What it has said stays, so that the module is known while it is away.
-- keys: heartbeats, revision
-- args: channel, module, id
-- include: directory/changed

if redis.call('ZREM', heartbeats, module .. ' ' .. id) == 1 then changed(module) end
local others = 0
for _, member in ipairs(redis.call('ZRANGE', heartbeats, 0, -1)) do
  if string.sub(member, 1, #module + 1) == module .. ' ' then others = others + 1 end
end
return others
