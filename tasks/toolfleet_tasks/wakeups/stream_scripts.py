"""What happens at once inside Redis for those who read a conversation's news.

News are entries of a stream (`id`: the wake's, `body`: JSON), all readers one consumer group of it. A reader has at most one
entry at a time: whatever else is pending for him is what he was given and never heard of, or what he left behind when he died.
What was read is removed.
"""

TAKE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, '0-0'} end
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0') -- it may be there already

local function pending(...)
  for _, one in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], ...)) do
    local found = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, one[1])
    if found[1] and found[1][2] then return found[1] end
    redis.call('XACK', KEYS[1], ARGV[1], one[1]) -- there were too many, or it was too old
  end
end

local entry = pending('-', '+', 10, ARGV[2]) or pending('IDLE', ARGV[3], '-', '+', 10)
if not entry then
  local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
  entry = found and found[1] and found[1][2][1]
end
if entry then return {1, entry[1], entry[2]} end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then return {0, info[i + 1]} end
end
return {0, '0-0'}
"""
"""Take the next entry. KEYS: the stream. ARGV: group, consumer, ms after which a reader is dead from whom nothing is heard.

Returns [1, entry id, fields], or [0, the entry id after which there will be another one].
"""

KEEP = """
local found = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if found.err or #found == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')
return 1
"""
"""Say that a reader is still at it. KEYS: the stream. ARGV: group, consumer, entry id. Returns 0 if others have it, or nobody."""

DONE = """
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.pcall('XDEL', KEYS[1], ARGV[2])
"""
"""It was read. KEYS: the stream. ARGV: group, entry id."""

SKIP = """
return redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
"""
"""It is nothing to read, and nobody is given it again. KEYS: the stream. ARGV: group, entry id."""

LEAVE = """
local found = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 10, ARGV[2])
if found.err then return 0 end
for _, one in ipairs(found) do
  redis.call('XCLAIM', KEYS[1], ARGV[1], 'nobody', 0, one[1], 'IDLE', 86400000, 'JUSTID')
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return #found
"""
"""A reader leaves: what he has not read to the end is the next one's. KEYS: the stream. ARGV: group, consumer."""
