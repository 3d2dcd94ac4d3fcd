-- Notes that results were had, and drops the texts that nobody else still wants. May be sent again.
-- readers: the calls that wait for the same result. stored: what its caller has stored.
-- value: what stands in the result's place, as Celery's value, '' for nothing.
-- reader: of a call that waited for another one's result, its own id: then the text is dropped if its own caller has had it.
-- keys: results(record, result, readers, stored)...
-- args: had(call_id, value, reader)...
-- include: storage/stored

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
