-- `wake_put(hash_key, due_key, id, now_ms, kind, body)`: has news delivered, from now on; those that wait already stay as they are.
-- `due_key` is `keys.wakes_due`, whatever the kind; `due_set(due_key, kind, id)` is the set for it.
-- `completion_put(stream_key, id, body, seconds)`: for an agent without HTTP; kept for so long after the last, about 1,000 of
-- them at most. `stream_key`: a user's stream of a conversation. Which users have one is a stream, too: readers wait for more.
-- How many were trimmed is kept with the first entry that is left, until a reader was told.

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
