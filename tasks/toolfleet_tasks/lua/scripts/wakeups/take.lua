-- Takes the next entry of a conversation's stream.
-- idle_ms: a reader is dead from whom nothing is heard for so long.
-- keys: stream
-- args: group, consumer, idle_ms

if redis.call('EXISTS', stream) == 0 then return {0, '0-0'} end
redis.pcall('XGROUP', 'CREATE', stream, group, '0') -- it may be there already

local function pending(...)
  for _, one in ipairs(redis.call('XPENDING', stream, group, ...)) do
    local found = redis.call('XCLAIM', stream, group, consumer, 0, one[1])
    if found[1] and found[1][2] then return found[1] end
    redis.call('XACK', stream, group, one[1]) -- there were too many, or it was too old
  end
end

local entry = pending('-', '+', 10, consumer) or pending('IDLE', idle_ms, '-', '+', 10)
if not entry then
  local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
  entry = found and found[1] and found[1][2][1]
end
if entry then return {1, entry[1], entry[2]} end
local info = redis.call('XINFO', 'STREAM', stream)
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then return {0, info[i + 1]} end
end
return {0, '0-0'}
