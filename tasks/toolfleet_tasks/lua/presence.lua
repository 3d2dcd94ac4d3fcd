-- What live workers note of themselves. A note counts for some seconds.

-- script: note(notes; worker, note, seconds)
-- Notes something of a worker, and forgets the notes of those that are silent, also if the clock was set back.
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', notes, worker, now .. ' ' .. note)
local all = redis.call('HGETALL', notes)
for i = 1, #all, 2 do
  local at = tonumber(string.match(all[i + 1], '^%d+') or 0)
  if math.abs(now - at) > tonumber(seconds) then redis.call('HDEL', notes, all[i]) end
end
return redis.call('EXPIRE', notes, seconds)

-- script: note_slots(lanes...; note, seconds)
-- Notes how many calls a worker runs at once, in each of its lanes, and forgets workers that have been silent for longer than a
-- note counts. Returns all notes of these lanes.
local found, at = {}, redis.call('TIME')[1]
for _, key in ipairs(lanes) do
  redis.call('ZADD', key, at, note)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', at - seconds - 1)
  redis.call('ZREMRANGEBYSCORE', key, at + 1, '+inf') -- the clock was set back: who lives says so again
  redis.call('EXPIRE', key, seconds)
  for _, each in ipairs(redis.call('ZRANGE', key, 0, -1)) do found[#found + 1] = each end
end
return found

-- script: announce(modes; mode, worker, seconds)
-- Notes that a worker lives, unless one lives that works in another mode.
local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', modes, '-inf', clock[1] - seconds)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', modes, '-inf', clock[1] + 1)) do -- later: of before it was set back
  if string.sub(member, 1, #mode + 1) ~= mode .. ' ' then return member end
end
redis.call('ZADD', modes, clock[1], mode .. ' ' .. worker)
redis.call('EXPIRE', modes, seconds)
return false

-- script: replies(lanes...; listeners, repliers)
-- Whether all live processes say that they announce ends on reply channels, too: workers in their notes, and whoever listens to
-- `listeners`, as all agents and gateways do, by listening to `repliers` as well. One that says nothing is an older one.
local at = redis.call('TIME')[1] - SLOTS_COUNT_SECONDS
for _, key in ipairs(lanes) do
  for _, note in ipairs(redis.call('ZRANGEBYSCORE', key, at, '+inf')) do
    if not string.find(note .. ' ', REPLIES .. ' ', 1, true) then return 0 end
  end
end
local listening = redis.call('PUBSUB', 'NUMSUB', listeners, repliers)
return listening[4] > 0 and listening[2] == listening[4] and 1 or 0
