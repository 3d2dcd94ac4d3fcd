"""The Lua that changes the directory of modules: each change happens inside Redis, as a whole or not at all.

KEYS[1] is the directory, a hash: module -> entry (JSON, with a signature before it if the fleet signs); KEYS[2] counts its
changes. A change is announced on the channel that tells of changed manifests, so that agents read both.
"""

_CHANGED = """
local function changed(channel, module)
  redis.call('INCR', KEYS[2])
  redis.call('PUBLISH', channel, module)
end
"""

REPLACE = (
    _CHANGED
    + """
local there = redis.call('HGET', KEYS[1], ARGV[2]) or ''
if there ~= ARGV[3] then return 0 end
if ARGV[4] == '' then redis.call('HDEL', KEYS[1], ARGV[2]) else redis.call('HSET', KEYS[1], ARGV[2], ARGV[4]) end
changed(ARGV[1], ARGV[2])
return 1
"""
)
"""ARGV: the channel, the module, what must be stored now and what is to be; '' for nothing. Returns 1 if it has happened."""

FEED = (
    _CHANGED
    + """
local now = tonumber(redis.call('TIME')[1])
local answers = {}
for i = 3, #ARGV, 3 do
  local module, text, mark = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local there = redis.call('HGET', KEYS[1], module) or ''
  local answer = ''
  if there ~= text then
    local readable, entry = pcall(cjson.decode, string.match(there, '{.*$') or '')
    local is_static = readable and type(entry) == 'table' and entry.origin == 'settings'
    local fed_at = redis.call('ZSCORE', KEYS[3], module .. ' ' .. string.sub(redis.sha1hex(there), 1, 16))
    answer = there
    if not (is_static and fed_at and tonumber(fed_at) > now - ARGV[2]) then
      redis.call('HSET', KEYS[1], module, text)
      changed(ARGV[1], module)
    end
  end
  redis.call('ZADD', KEYS[3], now, module .. ' ' .. mark)
  answers[#answers + 1] = answer
end
redis.call('ZADD', KEYS[3], now, '*')
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. (now - ARGV[2]))
redis.call('EXPIRE', KEYS[3], 2 * ARGV[2])
return answers
"""
)
"""Put in what a process has in its settings. An entry that other processes feed now, and that says something else, stays.

KEYS[3]: what is fed now, by when (s): `<module> <mark>`, and `*` for whoever feeds. ARGV: the channel, for how many seconds a feeding counts; then for each
module its name, its entry, and the entry's mark, the first 16 digits of its SHA-1. Returns for each what was there, if it was
something else.
"""

FED = """
local now = tonumber(redis.call('TIME')[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], now - ARGV[1] + 1, '+inf')
"""
"""KEYS[1]: what is fed now. ARGV[1]: for how many seconds a feeding counts. Returns what is."""
