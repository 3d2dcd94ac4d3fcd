-- Notes what a worker runs, and forgets the notes of those that are silent.
-- note: its calls by module. seconds: for how long a note counts.
-- keys: loads
-- args: worker, note, seconds

local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', loads, worker, string.format('%.0f', now) .. ' ' .. note)
local notes = redis.call('HGETALL', loads)
for i = 1, #notes, 2 do
  local at = tonumber(string.match(notes[i + 1], '^%d+'))
  if not at or math.abs(now - at) > tonumber(seconds) then redis.call('HDEL', loads, notes[i]) end
end
redis.call('EXPIRE', loads, seconds)
return 1
