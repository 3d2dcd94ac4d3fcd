-- Moves messages from queues into the hands of a worker: each queue's portion first, then whatever there is.
-- The next worker is notified of queues in which something is left that may be taken, and not of one of a module that is
-- full: see `queues/release_slot`. A message that must wait for its time takes no place.
-- queues: they come in this order. tag: what their tags begin with. prefix_length: of the prefix before each queue's name.
-- reserve_ms: for how long a place is kept for a call until it is claimed.
-- lease_ms: of the claims that are made here, 0 for none. A message that says so is that of a call of which a repeat does no harm:
--   if nothing is known of it, of its module's breaker or of a paused queue, its first attempt begins, as `ledger/claim` would
--   have it; its token is its tag with a mark, which says when it was made, and by which worker: '' if that is not known.
-- record_seconds: how long its record lives at least.
-- avoided: queues of whose calls none is claimed, from 1.
-- record_prefix, breaker_prefix: before calls' ids, and before modules.
-- bounds: of the modules that have one: the queue's number, from 1, the bound, and the key of the running calls.
-- keys: unacked, unacked_index, queue_states, queues(key, notify_key)...
-- args: wanted, tag, prefix_length, reserve_ms, lease_ms, worker, record_seconds, record_prefix, breaker_prefix
-- args: avoided..., bounds(queue, bound, running)...
-- include: queues/now, overload/running

-- Wrong types must show before anything is taken: a script that fails is not undone.
redis.call('HLEN', unacked)
redis.call('ZCARD', unacked_index)
wanted, prefix_length = tonumber(wanted), tonumber(prefix_length)
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

-- Begins the first attempt of the message's call, if it may begin so, and returns its id; else ''. Nothing can fail here.
local function claim(queue, item, id)
  local seconds, effect, call_id = string.match(item, '^{"begin":"(%d+) (%l+) ([^"\\]+)",')
  if not seconds or #seconds > 9 then return '' end
  local record = record_prefix .. call_id
  queue.breaker = queue.breaker or breaker_prefix .. string.match(queue.key, '[^.]*$', prefix_length + 1)
  if redis.call('EXISTS', record, queue.breaker, queue_states) > 0 then return '' end
  redis.call('HSET', record, 'token', id .. mark, 'lease', lease_end, 'begun', 1, 'effect', effect, 'so_far', 'none', 'log', '',
    'as', 'go')
  redis.call('EXPIRE', record, math.max(tonumber(seconds), tonumber(record_seconds)))
  return call_id
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
  for _, item in ipairs(items) do
    local id = tag .. count
    count = count + 1
    redis.call('ZADD', unacked_index, now, id)
    redis.call('HSET', unacked, id, '[' .. item .. ',"","' .. string.sub(queue.key, prefix_length + 1) .. '"]')
    found[#found + 1] = id
    found[#found + 1] = i
    found[#found + 1] = item
    found[#found + 1] = may_claim and claim(queue, item, id) or ''
  end
  if is_full or (#items > 0 and #items < portion) then redis.call('DEL', queue.notify_key) end
  return #items == portion and not is_full
end

local portion = math.max(math.ceil(wanted / #queues), 4)
for i = 1, #queues do
  if count == wanted or take(i, math.min(portion, wanted - count)) then rest[#rest + 1] = i end
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
