-- Large results in a store: whose they are, until when, and which objects no record names. Times are the server's.
-- An artifact's record is JSON. `stored`: an owner's artifacts, counted as `storage` counts stored results.
-- `due`: each object's name, by when (ms) no record names it: the sweep deletes it then.
-- include: storage, clock

local function artifact_is_over(stored, size, most)
  return stored_bytes(stored, now) + tonumber(size) > tonumber(most)
end

-- script: reserve(record, stored, due; id, size, most, grace_ms)
-- Notes an object that is about to be written. Answers 1; 0 if there is one of this name; or -1 if its owner has no room.
if redis.call('EXISTS', record) == 1 or redis.call('ZSCORE', due, id) then return 0 end
if artifact_is_over(stored, size, most) then return -1 end
redis.call('ZADD', due, now + tonumber(grace_ms), id)
return 1

-- script: save(record, stored, due; id, size, most, keep_ms, text)
-- Has a record name an object that was written. Answers 1; 0 if that took too long, or it has a record; or -1 as `reserve`.
if redis.call('EXISTS', record) == 1 or tonumber(redis.call('ZSCORE', due, id) or 0) <= now then return 0 end
if artifact_is_over(stored, size, most) then return -1 end
redis.call('SET', record, text, 'PX', math.ceil(keep_ms))
stored_add(stored, id, size, now, tonumber(keep_ms))
redis.call('ZADD', due, now + tonumber(keep_ms), id)
return 1

-- script: forget(stored, due; record, ids...)
-- Removes an owner's records of these ids; without any, all. Answers their ids.
-- record: the key of one, but for the artifact's id at its end.
local wanted, forgotten = {}, {}
for _, id in ipairs(ids) do wanted[id] = true end
for _, member in ipairs(redis.call('ZRANGE', stored, 0, -1)) do
  local id = string.match(member, '^(%S+) %d+$')
  if id and (#ids == 0 or wanted[id]) then
    redis.call('DEL', record .. id)
    stored_forget(stored, member)
    redis.call('ZADD', due, now, id)
    forgotten[#forgotten + 1] = id
  end
end
return forgotten

-- script: due(due; most)
-- Answers the names of objects that no record names.
return redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)
