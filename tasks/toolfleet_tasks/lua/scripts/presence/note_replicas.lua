-- Notes what a worker finds of modules' processes; nothing, if it finds nothing. Forgets workers that are silent.
-- seconds: for how long a note counts.
-- keys: counts
-- args: worker, note, seconds

local now = tonumber(redis.call('TIME')[1])
if note == '' then
  redis.call('HDEL', counts, worker)
else
  redis.call('HSET', counts, worker, now .. ' ' .. note)
end
local notes = redis.call('HGETALL', counts)
for i = 1, #notes, 2 do
  local at = tonumber(string.match(notes[i + 1], '^%d+') or 0)
  if math.abs(now - at) > tonumber(seconds) then redis.call('HDEL', counts, notes[i]) end -- also if the clock was set back
end
return redis.call('EXPIRE', counts, seconds)
