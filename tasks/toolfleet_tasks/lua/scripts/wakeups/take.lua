-- Takes the next entry of a conversation's streams, beginning with another one each turn: who has many holds up nobody.
-- idle_ms: a reader is dead from whom nothing is heard for so long. page: a call visits the hundred streams of this page.
-- Returns 1 with an entry, 2 with what is lost, or 0 with the visited streams, their last ids, and whether there is a next page.
-- keys: stream, users, lost
-- args: group, consumer, idle_ms, turn, page
-- include: wakeups/streams

local function pending(key, ...)
  for _, one in ipairs(redis.call('XPENDING', key, group, ...)) do
    local found = redis.call('XCLAIM', key, group, consumer, 0, one[1])
    if found[1] and found[1][2] then return found[1] end
    redis.call('XACK', key, group, one[1]) -- there were too many, or it was too old
  end
end

local function next_of(key)
  redis.pcall('XGROUP', 'CREATE', key, group, '0') -- it may be there already
  local entry = pending(key, '-', '+', 10, consumer) or pending(key, 'IDLE', idle_ms, '-', '+', 10)
  if entry then return entry end
  local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
  return found and found[1] and found[1][2][1]
end

local function last_of(key)
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local streams, last_user = streams_of(stream, users)
local names, ids, behind = {}, {}, tonumber(page) * 100
if behind == 0 then names, ids = {users}, {last_user} end
local last = math.min(#streams, behind + 100)
for i = behind + 1, last do
  local key = streams[(i + tonumber(turn)) % #streams + 1]
  local lost_key = lost .. string.sub(key, #stream + 1)
  local trimmed = redis.call('GET', lost_key)
  if trimmed then return {2, lost_key, trimmed} end
  names[#names + 1], ids[#ids + 1] = key, '0-0'
  if redis.call('EXISTS', key) == 1 then
    local entry = next_of(key)
    if entry then return {1, key, entry[1], entry[2]} end
    ids[#ids] = last_of(key)
  end
end
return {0, names, ids, last < #streams and 1 or 0}
