-- Queues, and the messages that workers hold: `transport/scripts.py` says what is stored.
-- include: ledger, overload

-- The server's time in seconds, as text, rounded up: no lease ends before its time. Whole ones, as Redis looks through so short a
-- sorted set from its beginning, and reads each fraction out of a text.
local clock = redis.call('TIME')
local now_s = string.format('%d', clock[1] + 1)

-- Returns whether there was such a message, and whether it must stay where it is.
local function requeue_one(tag, redelivered)
  local held = redis.call('HGET', unacked, tag)
  if not held then
    redis.call('ZREM', unacked_index, tag)
    return 0, false
  end
  local item, name = string.match(held, '^%[(.*), ?"[^"]*", ?"([^"]*)"%]$')
  if not item then return 0, true end -- not written by us nor by kombu: stays where it is
  if redelivered and string.match(item, '^{%s*"') and string.sub(item, 1, 19) ~= '{"redelivered":true' then
    item = '{"redelivered":true,' .. string.sub(item, 2)
  end
  local pushed = redis.pcall('RPUSH', queue_prefix .. name, item)
  if type(pushed) ~= 'number' then return 0, true end -- somebody's key of another type: better kept here than lost
  redis.call('HDEL', unacked, tag)
  redis.call('ZREM', unacked_index, tag)
  local notify_key = notify_prefix .. name
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
  return 1, false
end

-- A holder has died if nobody listens on its channel, which is so as soon as its process has ended, and it was not told to end.
local is_dead = {}
local function has_died(holder)
  if is_dead[holder] == nil then
    is_dead[holder] = redis.call('PUBSUB', 'NUMSUB', channel_prefix .. holder)[2] == 0
      and redis.call('EXISTS', ending_prefix .. holder) == 0
  end
  return is_dead[holder]
end

-- Writes into a message whose lease has run out who has died with it. Who was counted and is back, counts no more.
local function mark_deaths(tag)
  local held = redis.call('HGET', unacked, tag)
  local holder, item = string.match(tag, '^w(%x+)%-'), held and string.match(held, '^%[({%s*".*)$')
  if not item then return end
  item = string.gsub(item, '^{"redelivered":true,', '{', 1)
  local before, rest = string.match(item, '^{"died":"([%x ]*)",(.*)$')
  local dead = {}
  for one in string.gmatch((before or '') .. ' ' .. (holder or ''), '%x+') do
    if has_died(one) then dead[#dead + 1] = one end
  end
  if #dead == 0 and not before then return end
  local died = #dead > 0 and '"died":"' .. table.concat(dead, ' ') .. '",' or ''
  redis.call('HSET', unacked, tag, '[{"redelivered":true,' .. died .. (rest or string.sub(item, 2)))
end

-- script: publish(queue, notify_key; message, limit?)
-- Puts a message into a queue and notifies whoever waits for it; nothing, if there is a `limit` and so many wait already.
if limit then
  local waiting = redis.call('LLEN', queue)
  if waiting >= tonumber(limit) then return {'backlog', waiting} end
end
local length = redis.call('LPUSH', queue, message)
if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
return length

-- script: reserve(unacked, unacked_index, queues...;
--   wanted, tag, base, reserve_ms, lease_ms, worker, record_seconds, avoided..., bounds(queue, bound, running)...)
-- Moves messages from queues into the hands of a worker: each queue's portion first, then whatever there is.
-- The next worker is notified of queues in which something is left that may be taken, and not of one of a module that is
-- full: see `release_slot`. A message that must wait for its time takes no place.
-- queues: they come in this order. tag: what their tags begin with. base: what our own keys begin with.
-- reserve_ms: for how long a place is kept for a call until it is claimed.
-- lease_ms: of the claims that are made here, 0 for none. A message that says so is that of a call of which a repeat does no harm:
--   if nothing is known of it, of its module's breaker or of a paused queue, its first attempt begins, as `ledger/claim` would
--   have it; its token is its tag with a mark, which says when it was made, and by which worker: '' if that is not known.
-- record_seconds: how long its record lives at least.
-- avoided: queues of whose calls none is claimed, from 1.
-- bounds: of the modules that have one: the queue's number, from 1, the bound, and the key of the running calls.
wanted = tonumber(wanted)
local queue_states, taken = base .. 'queue-states', queues
queues = {}
for i, key in ipairs(taken) do
  local name = string.sub(key, #base - 9) -- `toolfleet:` is behind the prefix that queues have, too
  queues[i] = {key = key, name = name, notify_key = base .. 'bell:' .. name}
end
local left, count, rest = {}, 0, {}
-- The worker cannot say when: it may have sent this long before.
local mark = worker == '' and '' or string.format('~%x~', clock[1] * 1000000 + clock[2]) .. worker
local found = {left, mark}
for _, one in ipairs(bounds) do
  local queue = queues[tonumber(one.queue)]
  queue.bound, queue.running = tonumber(one.bound), one.running
end

-- Takes messages for which the module has slots, and says whether there is more in the queue, but no slot for it.
local function pop_bounded(queue, portion)
  local items, now_ms = {}, clock[1] * 1000 + math.floor(clock[2] / 1000)
  while #items < portion do
    local item = redis.pcall('LINDEX', queue.key, -1)
    if type(item) ~= 'string' then break end
    local is_read, message = pcall(cjson.decode, item)
    local headers = is_read and type(message) == 'table' and message.headers
    local id = type(headers) == 'table' and type(headers.eta) ~= 'string' and headers.id
    if type(id) == 'string' and running_reserve(queue.running, id, now_ms, now_ms + reserve_ms, queue.bound) == 0 then
      return items, true
    end
    items[#items + 1] = redis.call('RPOP', queue.key)
  end
  return items, false
end

local is_claiming, lease_end = lease_ms ~= '0', clock[1] * 1000 + math.floor(clock[2] / 1000) + lease_ms
for _, number in ipairs(avoided) do queues[tonumber(number)].is_avoided = true end

-- Begins the first attempts of these calls, where they may begin so, and notes their ids. Nothing can fail here. Nearly always
-- nothing is known of any of them; a call whose message came twice has its record by then.
local claimed = {}

local function claim(queue, calls, records)
  if #calls == 0 then return end
  queue.breaker = queue.breaker or base .. 'breaker:' .. string.match(queue.name, '[^.]*$')
  local are_new = redis.call('EXISTS', queue.breaker, queue_states, unpack(records)) == 0
  for at, call in ipairs(calls) do
    local record = records[at]
    if (are_new and not claimed[record]) or redis.call('EXISTS', record, queue.breaker, queue_states) == 0 then
      claimed[record] = true
      redis.call('HSET', record, 'token', call.tag .. mark, 'lease', lease_end, 'begun', 1, 'effect', call.effect,
        'so_far', 'none', 'log', '', 'as', 'go')
      redis.call('EXPIRE', record, math.max(tonumber(call.seconds), tonumber(record_seconds)))
      found[call.place] = call.id
    end
  end
end

-- Holds messages that were taken. A script that fails is not undone: where somebody's key of another type is in the way, they go
-- back.
local function hold(queue, items, leases, held)
  local done = redis.pcall('HSET', unacked, unpack(held))
  if type(done) == 'number' then done = redis.pcall('ZADD', unacked_index, unpack(leases)) end
  if type(done) == 'number' then return end
  for at = #items, 1, -1 do
    redis.pcall('HDEL', unacked, leases[2 * at])
    redis.call('RPUSH', queue.key, items[at])
  end
  error(done.err)
end

local function take(i, portion)
  local queue, is_full = queues[i], false
  local items
  if queue.bound then
    items, is_full = pop_bounded(queue, portion)
  else
    items = redis.pcall('RPOP', queue.key, portion)
    if type(items) ~= 'table' or items.err then items = {} end -- empty, or somebody's key of another type
  end
  local may_claim = is_claiming and not queue.bound and not queue.is_avoided
  local leases, held, calls, records = {}, {}, {}, {}
  for at, item in ipairs(items) do
    local id = tag .. count
    count = count + 1
    leases[2 * at - 1], leases[2 * at] = now_s, id
    held[2 * at - 1], held[2 * at] = id, '[' .. item .. ',"","' .. queue.name .. '"]'
    found[#found + 1] = id
    found[#found + 1] = i
    found[#found + 1] = item
    found[#found + 1] = ''
    local seconds, effect, call_id
    if may_claim then seconds, effect, call_id = string.match(item, '^{"%l+":"(%d+) (%l+) ([^"\\]+)",') end
    if seconds and #seconds <= 9 then
      calls[#calls + 1] = {id = call_id, tag = id, seconds = seconds, effect = effect, place = #found}
      records[#calls] = base .. 'call:' .. call_id
    end
  end
  if #items > 0 then hold(queue, items, leases, held) end
  claim(queue, calls, records)
  if is_full or (#items > 0 and #items < portion) then redis.call('DEL', queue.notify_key) end
  return #items == portion and not is_full
end

local portion = math.max(math.ceil(wanted / #queues), 4)
for i = 1, #queues do
  if count == wanted or take(i, math.min(portion, wanted - count)) then rest[#rest + 1] = i end
end
-- A worker that has waited for a single message has nearly always emptied the queues with it.
local keys, notify_keys = {}, {}
for at, i in ipairs(rest) do keys[at], notify_keys[at] = queues[i].key, queues[i].notify_key end
if count == wanted and #rest > 1 and redis.call('EXISTS', unpack(keys)) == 0 then
  redis.call('DEL', unpack(notify_keys))
  rest = {}
end
for _, i in ipairs(rest) do
  local queue = queues[i]
  local is_full = count < wanted and not take(i, wanted - count) and queue.bound
  if is_full or redis.call('EXISTS', queue.key) == 0 then
    redis.call('DEL', queue.notify_key)
  else
    left[#left + 1] = i
    if redis.call('EXISTS', queue.notify_key) == 0 then redis.call('LPUSH', queue.notify_key, '1') end
  end
end
return found

-- script: holding(queues...)
-- Which of the queues hold something.
local holding = {}
for i, queue in ipairs(queues) do
  if redis.call('EXISTS', queue) == 1 then holding[#holding + 1] = i end
end
return holding

-- script: oldest(queues...; most_bytes, most_reads)
-- The queues that hold something, with their oldest message.
-- most_bytes: of the largest message that is brought; one behind it is taken instead, which is hardly younger.
-- most_reads: how many messages are looked at. They are taken from the end of the list.
local found, reads = {}, tonumber(most_reads)
for i, queue in ipairs(queues) do
  local length = redis.pcall('LLEN', queue)
  if type(length) == 'number' and length > 0 then
    local oldest = ''
    for at = 1, math.min(length, 3) do
      if reads == 0 then break end
      reads = reads - 1
      local message = redis.call('LINDEX', queue, -at)
      if #message <= tonumber(most_bytes) then
        oldest = message
        break
      end
    end
    found[#found + 1] = {i, length, oldest}
  end
end
return found

-- script: release_slot(running, queue, notify_key; call_id)
-- A worker is done with a message of a module with a bound: the next one may be taken, and the place of the call is freed if it
-- was never claimed. running: the module's running calls.
running_release(running, call_id)
if redis.call('EXISTS', queue) == 1 and redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
return 1

-- script: renew(unacked_index; tags...)
-- Begins leases anew. Refused when Redis takes no writes, also without a tag.
-- Redis refuses a script's first write, if it takes none (out of memory, replica, failing disk): this one changes nothing.
redis.call('ZADD', unacked_index, 'XX', 'GT', '-inf', '')
local lost = {}
for _, tag in ipairs(tags) do
  if redis.call('ZSCORE', unacked_index, tag) then
    redis.call('ZADD', unacked_index, now_s, tag)
  else
    lost[#lost + 1] = tag
  end
end
return lost

-- script: ack(unacked, unacked_index; tags...)
-- Forgets messages for good.
redis.call('ZREM', unacked_index, unpack(tags))
return redis.call('HDEL', unacked, unpack(tags))

-- script: requeue(unacked, unacked_index; queue_prefix, notify_prefix, begun, record_prefix, tags...)
-- Puts messages back to where they came from, to be the next ones, the first tag's first.
-- begun: '1' if they may have been begun, else '0': then a claim that was made as one was taken goes with it.
-- record_prefix: before calls' ids.
-- Redis refuses a script's first write, if it takes none (out of memory, replica, failing disk): this one changes nothing.
redis.call('ZADD', unacked_index, 'XX', 'GT', '-inf', '')
local count = 0
for i = #tags, 1, -1 do
  local held = begun == '0' and redis.call('HGET', unacked, tags[i])
  local call_id = held and string.match(held, '^%[{"%l+":"%d+ %l+ ([^"\\]+)",')
  if call_id then claim_forget(record_prefix .. call_id, tags[i]) end
  count = count + (requeue_one(tags[i], begun == '1'))
end
return count

-- script: restore(unacked, unacked_index; queue_prefix, notify_prefix, began_by, most, now, channel_prefix, ending_prefix)
-- Puts back the messages whose lease has run out, the oldest to be next. A message says in `died` which holders it had when they
-- died, as far as they are not back. The leases of messages that could not be put back begin anew.
-- began_by: when those leases began at the latest. now: the time. Both must come from an answer of this Redis to this
--   connection: one that froze with the script in its socket runs it when it wakes, and by its own clock then every lease would
--   have run out.
-- most: how many at most. channel_prefix, ending_prefix: of holders' channels, and of notes that they were told to end.
-- Redis refuses a script's first write, if it takes none (out of memory, replica, failing disk): this one changes nothing.
redis.call('ZADD', unacked_index, 'XX', 'GT', '-inf', '')
-- Begun before the clock was set back: as nobody may be there who renews them, they begin now.
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', unacked_index, clock[1] + 2, '+inf', 'LIMIT', 0, most)) do
  redis.call('ZADD', unacked_index, clock[1], tag)
end
local tags = redis.call('ZRANGEBYSCORE', unacked_index, '-inf', began_by, 'LIMIT', 0, most)
local restored, stuck = 0, 0
for i = #tags, 1, -1 do
  mark_deaths(tags[i])
  local count, must_stay = requeue_one(tags[i], true)
  restored = restored + count
  if must_stay then
    redis.call('ZADD', unacked_index, now, tags[i]) -- out of the way of the others, which come after it
    stuck = stuck + 1
  end
end
return {#tags, restored, stuck}

-- script: expire(unacked, unacked_index; holder, channel_prefix, record_prefix, tags...)
-- Expires the leases of a worker that has died, as its parent says, which has waited for it: `restore` then puts its messages back.
-- Changes nothing while the worker is connected: the parent is wrong, or Redis has not heard yet.
-- Claims go with them where a repeat does no harm. Of other calls the request may still be on its way: their modules are asked what
-- became of them once their leases have run out, as ever.
-- holder: under which name it held them. tags: of messages that it may hold. record_prefix: before calls' ids.
if redis.call('PUBSUB', 'NUMSUB', channel_prefix .. holder)[2] ~= 0 then return -1 end

local function expire_claim(held)
  local is_read, item = pcall(cjson.decode, held)
  local headers = is_read and type(item) == 'table' and type(item[1]) == 'table' and item[1].headers
  local id = type(headers) == 'table' and headers.id
  local found = type(id) == 'string' and redis.pcall('HMGET', record_prefix .. id, 'token', 'lease', 'effect')
  if not found or found.err or not found[1] then return end
  local is_its = string.find(found[1], '^w?' .. holder .. '[~%-]')
  if is_its and (found[3] == 'read' or found[3] == 'idempotent') and (tonumber(found[2] or nil) or 0) > now then
    redis.call('HSET', record_prefix .. id, 'lease', now)
  end
end

local count = 0
for _, tag in ipairs(tags) do
  local held = redis.call('HGET', unacked, tag)
  if held and redis.call('ZSCORE', unacked_index, tag) then
    redis.call('ZADD', unacked_index, 1, tag)
    expire_claim(held)
    count = count + 1
  end
end
return count

-- script: quarantine(unacked, unacked_index, messages, counter; tag, kept, most)
-- Takes a message that nobody can run out of the way. Refused, with nothing changed, if `messages` is no list.
-- kept: what to keep of the message. most: how many to keep.
-- Stored before it is removed: a script that fails is not undone. A counter that cannot count keeps nobody's message.
redis.call('LPUSH', messages, kept)
redis.call('LTRIM', messages, 0, most - 1)
local count = redis.pcall('INCR', counter)
redis.call('ZREM', unacked_index, tag)
redis.call('HDEL', unacked, tag)
return type(count) == 'number' and count or 0

-- script: store(result; record, call_id, value, seconds, announcement)
-- Writes a result, unless a success stands there already. record: the call's in the ledger. announcement: '' for none, '=' for the
-- value itself.
if redis.call('GETRANGE', result, 0, 19) == '{"status": "SUCCESS"' then return 0 end
redis.call('SET', result, value, 'EX', seconds)
if announcement ~= '' then announce(record, call_id, result, announcement == '=' and value or announcement) end
return 1
