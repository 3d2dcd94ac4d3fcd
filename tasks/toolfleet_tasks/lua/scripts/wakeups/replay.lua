-- Has dead news delivered after all, under the same id. News that wait for their next try have it now.
-- keys: dead, dead_order, dead_bytes, wake, due, clock_key
-- args: id
-- include: wakeups/now, wakeups/put, dead_letters/forget

local kept = redis.call('HGET', dead, id)
if not kept then -- it waits, if it is there: it is tried now
  local due_of_kind = due_set(due, redis.call('HGET', wake, 'kind'), id)
  return redis.call('ZADD', due_of_kind, 'XX', 'CH', now, id)
end
local is_read, event = pcall(cjson.decode, kept)
if not is_read or type(event) ~= 'table' or type(event.kind) ~= 'string' or type(event.body) ~= 'string' then return -1 end
if event.kind == 'call' and string.find(event.body, '"is_secret":true', 1, true) then return -2 end
wake_put(wake, due, id, now, event.kind, event.body)
return forget(dead, dead_order, dead_bytes, id)
