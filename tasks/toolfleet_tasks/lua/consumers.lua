-- Which worker consumes which queue: each worker notes it every second, and an agent asks with a call.
-- A note is a member `<worker> <digest>` of one sorted set, by until when it counts (s, the server's clock). The digest names a
-- set of queues, by their keys: all workers of a lane share one. A worker that stops for a restart leaves the note `restart
-- <digest>`, which counts for longer. So would the note of anything else that has calls wait, such as an operator's pause.

local function now_seconds()
  local clock = redis.call('TIME')
  return clock[1] + clock[2] / 1000000
end

-- For how many ms nobody has consumed a queue; -1 if somebody does. `base` is what our keys begin with, `queue` a key. It reads
-- the notes from the one that counts longest on.
local function unserved_ms(base, queue)
  local now = now_seconds()
  local oldest = string.format('%.3f', now - KEPT_SECONDS)
  local notes = redis.call('ZREVRANGEBYSCORE', base .. 'consumers', '+inf', oldest, 'WITHSCORES')
  local consumes, noted, last = {}, {}, nil
  for i = 1, #notes, 2 do
    local worker, digest = string.match(notes[i], '^(%S+) (%S+)$')
    if worker then
      if consumes[digest] == nil then
        consumes[digest] = redis.call('SISMEMBER', base .. 'consumed:' .. digest, queue) == 1
      end
      noted[worker] = noted[worker] or tonumber(notes[i + 1])
      last = last or consumes[digest] and tonumber(notes[i + 1]) or nil
      if last and last > now then return -1 end
    end
  end
  -- A worker of before there were notes consumes nobody knows what.
  for _, lane in ipairs({'fast', 'slow'}) do
    for _, note in ipairs(redis.call('ZRANGEBYSCORE', base .. 'slots:' .. lane, now - SLOTS_COUNT_SECONDS, '+inf')) do
      local worker = string.match(note, '^%d+ (%S+)')
      if worker and (noted[worker] or 0) < now - 2 * SLOTS_COUNT_SECONDS then return -1 end
    end
  end
  return math.floor((now - (last or now - KEPT_SECONDS)) * 1000)
end

-- script: note(notes, consumed; note, seconds, queues...)
-- Notes a worker. consumed: the digest's queues. seconds: for how long the note counts. queues: if they are to be written.
local now = now_seconds()
redis.call('ZADD', notes, string.format('%.3f', now + seconds), note)
redis.call('ZREMRANGEBYSCORE', notes, '-inf', now - KEPT_SECONDS)
redis.call('ZREMRANGEBYSCORE', notes, now + KEPT_SECONDS, '+inf') -- the clock was set back: who lives says so again
redis.call('EXPIRE', notes, KEPT_SECONDS)
for i = 1, #queues, 1000 do redis.call('SADD', consumed, unpack(queues, i, math.min(i + 999, #queues))) end
return redis.call('EXPIRE', consumed, 2 * KEPT_SECONDS)

-- script: leave(notes; note)
-- A worker ends, or consumes other queues from now on.
return redis.call('ZADD', notes, 'XX', string.format('%.3f', now_seconds()), note)

-- script: count(notes, consumed_prefix)
-- Which queues workers consume. consumed_prefix: what the keys of the digests' queues begin with.
local workers, found = {}, {}
for _, note in ipairs(redis.call('ZRANGEBYSCORE', notes, string.format('%.3f', now_seconds()), '+inf')) do
  local worker, digest = string.match(note, '^(%S+) (%S+)$')
  if worker and worker ~= RESTART then workers[digest] = (workers[digest] or 0) + 1 end
end
for digest, count in pairs(workers) do
  for _, queue in ipairs(redis.call('SMEMBERS', consumed_prefix .. digest)) do found[#found + 1] = {queue, count} end
end
return found

-- script: read(notes, queue)
-- For how long nobody has consumed a queue. Changes nothing.
return unserved_ms(string.match(notes, '^(.*)consumers$'), queue)
