-- Counts stored results, and calls that wait for approvals, by user: a sorted set of `<call id> <bytes>`, by when (ms) they expire;
-- the same key with `:bytes` is their sum. Small results are not counted: the number of a caller's calls bounds them. Times are
-- the server's.
-- include: clock

-- Where the results of a caller are counted, nil for what is no key of a caller's limit.
local function stored_key(caller_limit)
  local at, _, who = string.find(caller_limit, 'share:%a+:(%x+)$')
  return at and string.sub(caller_limit, 1, at - 1) .. 'stored:' .. who
end

local function stored_forget(key, member)
  if redis.call('ZREM', key, member) == 0 then return end
  local size = tonumber(string.match(member, '%d+$'))
  if redis.call('DECRBY', key .. ':bytes', size) <= 0 then redis.call('DEL', key .. ':bytes') end
end

-- The sum, without the expired.
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

-- script: had(results(record, result, readers, stored)...; had(call_id, value, reader)...)
-- Notes that results were had, and drops the texts that nobody else still wants. May be sent again.
-- readers: the calls that wait for the same result. stored: what its caller has stored.
-- value: what stands in the result's place, as Celery's value, '' for nothing.
-- reader: of a call that waited for another one's result, its own id: then the text is dropped if its own caller has had it.
local function drop(one, call_id, value)
  if value == '' then
    redis.call('DEL', one.result)
    redis.call('HDEL', one.record, 'result')
  else
    redis.call('SET', one.result, value, 'KEEPTTL', 'XX')
    if redis.call('HEXISTS', one.record, 'result') == 1 then redis.call('HSET', one.record, 'result', value) end
  end
  local size = redis.call('HGET', one.record, 'size')
  if size then stored_forget(one.stored, call_id .. ' ' .. size) end
  redis.call('HDEL', one.record, 'had', 'size')
end

for i, one in ipairs(results) do
  local value, reader = had[i].value, had[i].reader
  if reader ~= '' then
    redis.call('SREM', one.readers, reader)
    value = redis.call('HGET', one.record, 'had')
  end
  if value and redis.call('HGET', one.record, 'state') == 'done' then
    if redis.call('EXISTS', one.readers) == 1 then
      redis.call('HSET', one.record, 'had', value)
    else
      drop(one, had[i].call_id, value)
    end
  end
end
return 1

-- script: keep(record, contents, stored; token, call_id, text, seconds, most, spent)
-- Keeps what a call was asked and what it answered, unless somebody else has the call, or its user's share is half full: no
-- call is refused for what is kept here alone. Counts it there. Answers 1 if it is kept.
-- token: of who ends the call, or has just done so.
-- most: bytes of the user's share. spent: bytes that each costs beside its text.
local found = redis.call('HMGET', record, 'state', 'by', 'token')
local holder = found[1] and found[2] or found[3]
if holder and holder ~= token then return 0 end
local bytes = #text + spent
if stored_bytes(stored, now) + bytes > most / 2 then return 0 end
redis.call('SET', contents, text, 'EX', seconds)
stored_add(stored, 'contents:' .. call_id, bytes, now, seconds * 1000)
return 1

-- script: forget_contents(stored; contents)
-- Removes what is kept of the calls of a user. Answers of how many.
-- contents: the key of a call's, but for the call's id at its end.
local calls = 0
for _, member in ipairs(redis.call('ZRANGE', stored, 0, -1)) do
  local call_id = string.match(member, '^contents:(.+) %d+$')
  if call_id then
    calls = calls + redis.call('DEL', contents .. call_id)
    stored_forget(stored, member)
  end
end
return calls
