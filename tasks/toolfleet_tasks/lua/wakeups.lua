-- News of jobs, calls and the registry: an outbox of what is delivered over HTTP, by when (ms, the fleet's clock) it is due, and
-- streams of what agents without HTTP read. Of the arguments:
-- job: that of whose end news are; their own key where there is none. outcome: what the job keeps of them, '' for nothing.
-- prefix: what the hashes' names begin with.
-- include: clock, dead_letters

-- The fleet's time in ms.
local now = math.floor(fleet_time(clock_key) / 1000)

-- The set in which news of a kind wait; `due_key` is `keys.wakes_due`, whatever the kind.
local function due_set(due_key, kind, id)
  if kind == 'call' then return due_key .. ':calls' end
  if kind == 'registry' then return due_key .. ':webhooks:' .. (string.match(id, '@(%x+)$') or '') end
  return due_key
end

-- Has news delivered, from now on; those that wait already stay as they are.
local function wake_put(hash_key, due_key, id, now_ms, kind, body)
  if redis.call('EXISTS', hash_key) == 1 then return end
  redis.call('HSET', hash_key, 'kind', kind, 'body', body, 'tries', 0, 'first_at', now_ms)
  redis.call('ZADD', due_set(due_key, kind, id), now_ms, id)
end

-- News for an agent without HTTP; kept for so long after the last, about 1,000 of them at most. `stream_key`: a user's stream of a
-- conversation. Which users have one is a stream, too: readers wait for more. How many were trimmed is kept with the first entry
-- that is left, until a reader was told.
local function completion_put(stream_key, id, body, seconds)
  local since = string.format('%.0f', math.max(redis.call('TIME')[1] - seconds, 0) * 1000)
  local is_new = redis.call('EXISTS', stream_key) == 0
  redis.call('XADD', stream_key, '*', 'id', id, 'body', body)
  local lost = redis.call('XTRIM', stream_key, 'MINID', '~', since)
  lost = lost + redis.call('XTRIM', stream_key, 'MAXLEN', '~', 1000) -- of a conversation that nobody reads, the latest
  redis.call('EXPIRE', stream_key, seconds)
  local start, conversation, user = string.match(stream_key, '^(.*)completions:(%x+):(%x+)$')
  if not user then return end -- all users' of a conversation, as they were before
  local users, lost_key = start .. 'completion-users:' .. conversation, start .. 'completion-lost:' .. conversation .. ':' .. user
  if is_new or redis.call('EXISTS', users) == 0 then redis.call('XADD', users, 'MAXLEN', '~', 10000, '*', 'user', user) end
  redis.call('EXPIRE', users, seconds)
  if lost > 0 then
    lost = lost + (tonumber(string.match(redis.call('GET', lost_key) or '', '^%d+')) or 0)
    local first = redis.call('XRANGE', stream_key, '-', '+', 'COUNT', 1)[1][1]
    redis.call('SET', lost_key, string.format('%d %s', lost, first))
  end
  redis.call('EXPIRE', lost_key, seconds)
end

-- Keeps with a job what became of a wake-up of it, as long as the job is kept; the latest of them. `outcome`: a line of JSON. Sent
-- again, it is kept once. A key that is no job's keeps nothing.
local function outcome_noted(job_key, outcome)
  if outcome == '' or redis.pcall('HEXISTS', job_key, 'spec') ~= 1 then return end
  local kept = redis.call('HGET', job_key, 'outcomes') or ''
  if string.find(kept, outcome, 1, true) then return end
  kept = kept .. outcome .. '\n'
  while #kept > OUTCOMES_BYTES do kept = string.gsub(kept, '^[^\n]*\n', '', 1) end
  redis.call('HSET', job_key, 'outcomes', kept)
end

-- The streams of a conversation's users behind the one that all users had before, and the id of the last user that was added.
local function streams_of(all_key, users_key)
  local streams, known, last = {all_key}, {}, '0-0'
  for _, one in ipairs(redis.call('XRANGE', users_key, '-', '+')) do
    last = one[1]
    local key = all_key .. ':' .. one[2][2]
    if not known[key] then
      known[key] = true
      streams[#streams + 1] = key
    end
  end
  return streams, last
end

-- script: feed(positions, due, receiver_due, clock_key; receiver, at, to, prefix, events(id, body)...)
-- Puts events of the registry into the outbox for one receiver, and moves its position.
-- due: of wake-ups. receiver_due: of this receiver. at: the position after which the events were read. to: the new one.
if redis.call('HGET', positions, receiver) ~= at then return 'moved' end
if #events > 0 and redis.call('ZCARD', receiver_due) + #events > MOST_EVENTS_WAITING then return 'full' end
for _, event in ipairs(events) do
  wake_put(prefix .. event.id, due, event.id, now, 'registry', event.body)
end
redis.call('HSET', positions, receiver, to)
return 'fed'

-- script: claim(due, clock_key; prefix, token, lease_ms, most)
-- Takes what is due. Sent again, it takes others; the first ones come back when their lease is over. most: how many at most.
local READ_AT_ONCE = 100 -- news that wait, those due next first, of which it is seen whether they wait for longer than they were to
-- Put off while the clock that was set forward was taken for the time: they wait for as long as they were to from now on.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, now + 1000, '+inf', 'LIMIT', 0, READ_AT_ONCE)) do
  local found = redis.call('HMGET', prefix .. id, 'rest', 'tries')
  local rest = tonumber(found[1] or nil) or (found[2] == '0' and 0)
  if rest and redis.call('ZSCORE', due, id) - now > rest + 1000 then redis.call('ZADD', due, now + rest, id) end
end
local claimed = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
  local key = prefix .. id
  local found = redis.call('HMGET', key, 'kind', 'body', 'tries')
  if found[1] and found[2] then
    redis.call('HSET', key, 'token', token, 'rest', lease_ms)
    redis.call('ZADD', due, now + lease_ms, id)
    claimed[#claimed + 1] = {id, found[1], found[2], redis.call('HINCRBY', key, 'tries', 1)}
  else
    redis.call('ZREM', due, id)
    redis.call('DEL', key)
  end
end
return claimed

-- script: accepted(wake, due, job; id, outcome)
-- Somebody has accepted an event: whoever tries to deliver it meanwhile need not any more.
redis.call('ZREM', due, id)
local found = redis.call('DEL', wake)
outcome_noted(job, outcome)
return found

-- script: released(wake, due, clock_key; id, token)
-- It was claimed and not tried.
if redis.call('HGET', wake, 'token') ~= token then return 0 end
redis.call('HDEL', wake, 'token')
redis.call('HINCRBY', wake, 'tries', -1)
return redis.call('ZADD', due, now, id)

-- script: failed(wake, due, dead, dead_order, dead_bytes, clock_key, job;
--   id, token, next_ms, reason, give_up_ms, dead_kept, bytes_kept, dead_body, outcome)
-- A try has failed. The last one is made just when the news would be given up, which is what `outcome` is for.
-- next_ms: until the next try, '': there is none. give_up_ms: after `first_at`.
-- dead_kept, bytes_kept: how many dead ones are kept, of how many bytes.
-- dead_body: the body that is kept when it is dead, '': as it is.
local found = redis.call('HMGET', wake, 'token', 'first_at', 'kind', 'body', 'tries')
if found[1] ~= token then return 'lost' end
local rest = (tonumber(found[2]) or now) + give_up_ms - now
if next_ms ~= '' and rest > 0 then
  local wait = math.min(tonumber(next_ms), rest)
  redis.call('HDEL', wake, 'token')
  redis.call('HSET', wake, 'error', reason, 'rest', wait)
  redis.call('ZADD', due, now + wait, id)
  return 'later'
end
local body = dead_body ~= '' and dead_body or found[4]
local event = cjson.encode({kind = found[3], body = body, tries = found[5],
  first_at = found[2], died_at = string.format('%.0f', now), error = reason})
letter_forget(dead, dead_order, dead_bytes, id)
redis.call('HSET', dead, id, event)
redis.call('ZADD', dead_order, now, id)
redis.call('INCRBY', dead_bytes, #event)
redis.call('ZREM', due, id)
redis.call('DEL', wake)
outcome_noted(job, outcome)
for _ = 1, 500 do -- after a lower limit the rest goes by and by
  local bytes = tonumber(redis.call('GET', dead_bytes)) or 0
  if redis.call('ZCARD', dead_order) <= tonumber(dead_kept) and bytes <= tonumber(bytes_kept) then break end
  local oldest = redis.call('ZRANGE', dead_order, 0, 0)[1]
  if not oldest or oldest == id then break end
  letter_forget(dead, dead_order, dead_bytes, oldest)
end
return 'dead'

-- script: drop(wake, due, job, clock_key; id, outcome, outcome_under_way)
-- Forgets news that wait for a try. One that is under way may still be accepted; nobody begins another one.
local kind = redis.call('HGET', wake, 'kind')
if not kind then return 0 end
local due_of_kind = due_set(due, kind, id)
local is_tried = redis.call('HEXISTS', wake, 'token') == 1 and tonumber(redis.call('ZSCORE', due_of_kind, id) or 0) > now
redis.call('ZREM', due_of_kind, id)
redis.call('DEL', wake)
outcome_noted(job, is_tried and outcome_under_way or outcome)
return is_tried and 2 or 1

-- script: replay(dead, dead_order, dead_bytes, wake, due, clock_key; id)
-- Has dead news delivered after all, under the same id. News that wait for their next try have it now.
local kept = redis.call('HGET', dead, id)
if not kept then -- it waits, if it is there: it is tried now
  local due_of_kind = due_set(due, redis.call('HGET', wake, 'kind'), id)
  return redis.call('ZADD', due_of_kind, 'XX', 'CH', now, id)
end
local is_read, event = pcall(cjson.decode, kept)
if not is_read or type(event) ~= 'table' or type(event.kind) ~= 'string' or type(event.body) ~= 'string' then return -1 end
if event.kind == 'call' and string.find(event.body, '"is_secret":true', 1, true) then return -2 end
wake_put(wake, due, id, now, event.kind, event.body)
return letter_forget(dead, dead_order, dead_bytes, id)

-- script: take(stream, users, lost; group, consumer, idle_ms, turn, page)
-- Takes the next entry of a conversation's streams, beginning with another one each turn: who has many holds up nobody.
-- idle_ms: a reader is dead from whom nothing is heard for so long. page: a call visits the hundred streams of this page.
-- Returns 1 with an entry, 2 with what is lost, or 0 with the visited streams, their last ids, and whether there is a next page.
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

-- script: keep(stream; group, consumer, entry_id)
-- Says that a reader is still at it.
local found = redis.pcall('XPENDING', stream, group, entry_id, entry_id, 1, consumer)
if found.err or #found == 0 then return 0 end
redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'JUSTID')
return 1

-- script: read(stream, job; group, entry_id, outcome)
-- An entry was read.
redis.pcall('XACK', stream, group, entry_id)
local found = redis.pcall('XDEL', stream, entry_id)
if found == 1 then outcome_noted(job, outcome) end
return found

-- script: leave(stream, users; group, consumer)
-- A reader leaves: what he has not read to the end is the next one's.
local left = 0
for _, key in ipairs((streams_of(stream, users))) do
  local found = redis.pcall('XPENDING', key, group, '-', '+', 10, consumer)
  if not found.err then
    for _, one in ipairs(found) do
      redis.call('XCLAIM', key, group, 'nobody', 0, one[1], 'IDLE', 86400000, 'JUSTID')
    end
    redis.call('XGROUP', 'DELCONSUMER', key, group, consumer)
    left = left + #found
  end
end
return left

-- script: reported(lost; said)
-- A reader was told how many entries were trimmed; more since then it is told again, with these.
if redis.call('GET', lost) == said then return redis.call('DEL', lost) end
return 0

-- script: carry(old, stream; entry_id, seconds)
-- Puts an entry that an older process has written for all users of a conversation into its user's stream.
local found = redis.call('XRANGE', old, entry_id, entry_id)[1]
if not found then return 0 end
local fields = {}
for i = 1, #found[2], 2 do fields[found[2][i]] = found[2][i + 1] end
redis.call('XDEL', old, entry_id)
completion_put(stream, fields.id or '', fields.body, tonumber(seconds))
return 1
