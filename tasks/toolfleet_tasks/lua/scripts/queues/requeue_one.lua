-- `requeue(tag, redelivered)`: returns whether there was such a message, and whether it must stay where it is.
-- include: queues/refuse_unless_writable

local function requeue(tag, redelivered)
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
