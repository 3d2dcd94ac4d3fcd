-- Expires the leases of a worker that has died, as its parent says, which has waited for it: `queues/restore` then puts its
-- messages back. Changes nothing while the worker is connected: the parent is wrong, or Redis has not heard yet.
-- Claims go with them where a repeat does no harm. Of other calls the request may still be on its way: their modules are asked what
-- became of them once their leases have run out, as ever.
-- holder: under which name it held them. tags: of messages that it may hold.
-- record_prefix: before calls' ids.
-- keys: unacked, unacked_index
-- args: holder, channel_prefix, record_prefix, tags...
-- include: now

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
