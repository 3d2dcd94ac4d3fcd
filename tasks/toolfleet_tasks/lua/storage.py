"""The scripts that count the bytes of stored results by caller, and drop the text of results that have been had.

A caller's results stand in a sorted set, `<call id> <bytes>` by when (ms) they expire, and beside it under `:bytes` is their sum.
Small ones are not counted: what bounds them is the number of a caller's calls. Times are the server's.
"""

from toolfleet_tasks.lua.script import Script

COUNTED_FROM_BYTES = 4096
"""Of a stored result, that it counts: smaller ones take less room than their call's record and audit line."""

STORED = """
local function stored_key(share)
  local at, _, who = string.find(share, 'share:%a+:(%x+)$')
  return at and string.sub(share, 1, at - 1) .. 'stored:' .. who
end

local function stored_forget(key, member)
  if redis.call('ZREM', key, member) == 0 then return end
  local size = tonumber(string.match(member, '%d+$'))
  if redis.call('DECRBY', key .. ':bytes', size) <= 0 then redis.call('DEL', key .. ':bytes') end
end

local function stored_bytes(key, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 100)) do stored_forget(key, member) end
  return tonumber(redis.call('GET', key .. ':bytes') or 0)
end

local function stored_add(key, id, size, now, keep_ms)
  if redis.call('ZADD', key, now + keep_ms, id .. ' ' .. size) == 0 then return end
  redis.call('INCRBY', key .. ':bytes', size)
  if redis.call('PTTL', key) < keep_ms then
    redis.call('PEXPIRE', key, math.ceil(keep_ms))
    redis.call('PEXPIRE', key .. ':bytes', math.ceil(keep_ms))
  end
  stored_bytes(key, now)
end
"""
"""Count stored results. `stored_key(share)`: where those of a share's caller stand, nil for what is no share. `stored_add(key, id,
size, now, keep_ms)`, `stored_forget(key, member)`, and `stored_bytes(key, now)`: the sum, without the expired.
"""

HAD = Script(
    STORED
    + """
local function drop(record, result, stored, id, value)
  if value == '' then
    redis.call('DEL', result)
    redis.call('HDEL', record, 'result')
  else
    redis.call('SET', result, value, 'KEEPTTL', 'XX')
    if redis.call('HEXISTS', record, 'result') == 1 then redis.call('HSET', record, 'result', value) end
  end
  local size = redis.call('HGET', record, 'size')
  if size then stored_forget(stored, id .. ' ' .. size) end
  redis.call('HDEL', record, 'had', 'size')
end

for i = 1, #KEYS / 4 do
  local record, result, readers, stored = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  local id, value, reader = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if reader ~= '' then
    redis.call('SREM', readers, reader)
    value = redis.call('HGET', record, 'had')
  end
  if value and redis.call('HGET', record, 'state') == 'done' then
    if redis.call('EXISTS', readers) == 1 then
      redis.call('HSET', record, 'had', value)
    else
      drop(record, result, stored, id, value)
    end
  end
end
return 1
"""
)
"""Note that results were had, and drop the texts that nobody else still wants. May be sent again.

KEYS, for each: record, Celery's result, the calls that wait for the same result, its caller's stored results. ARGV, for each: call
id; what stands in the result's place, as Celery's value ('' for nothing); and, of a call that waited for another one's result, its own
id: then the text is dropped if its own caller has had it.
"""
