-- `wake_put(hash_key, due_key, id, now_ms, kind, body)`: has news delivered, from now on; those that wait already stay as they are.
-- `due_key` is `keys.wakes_due`, whatever the kind; `due_set(due_key, kind, id)` is the set for it.
-- `completion_put(stream_key, id, body, seconds)`: for an agent without HTTP; kept for so long after the last, about 1,000 of
-- them at most.

local function due_set(due_key, kind, id)
  if kind == 'call' then return due_key .. ':calls' end
  if kind == 'registry' then return due_key .. ':webhooks:' .. (string.match(id, '@(%x+)$') or '') end
  return due_key
end

local function wake_put(hash_key, due_key, id, now_ms, kind, body)
  if redis.call('EXISTS', hash_key) == 1 then return end
  redis.call('HSET', hash_key, 'kind', kind, 'body', body, 'tries', 0, 'first_at', now_ms)
  redis.call('ZADD', due_set(due_key, kind, id), now_ms, id)
end

local function completion_put(stream_key, id, body, seconds)
  local since = string.format('%.0f', math.max(redis.call('TIME')[1] - seconds, 0) * 1000)
  redis.call('XADD', stream_key, 'MINID', '~', since, '*', 'id', id, 'body', body)
  redis.call('XTRIM', stream_key, 'MAXLEN', '~', 1000) -- of a conversation that nobody reads, the latest
  redis.call('EXPIRE', stream_key, seconds)
end
