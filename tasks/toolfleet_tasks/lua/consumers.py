"""What scripts inside Redis know of who consumes which queue: each worker notes it every second, and an agent asks with a call.

A note is a member `<worker> <digest>` of one sorted set, by until when it counts (s, the server's clock). What stands behind
the digest is a set of queues, by their keys: all workers of a lane share one. A worker that stops for a restart leaves the note
`restart <digest>`, which counts for longer. So would the note of whatever else has calls wait, such as an operator's pause.
"""

from toolfleet_tasks.lua.overload import SLOTS_COUNT_SECONDS

RESTART = "restart"
"""In the place of the worker's name: a note of nobody, for the queues of a worker that is being restarted."""

NOTE_SECONDS = 2.0
"""A worker notes itself every second, and one that is a second late has not died."""

KEPT_SECONDS = 3600
"""Notes that count no longer still tell since when a queue has had nobody."""

NOTE = f"""
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.3f', now + ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - {KEPT_SECONDS})
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + {KEPT_SECONDS}, '+inf') -- the clock was set back: who lives says so again
redis.call('EXPIRE', KEYS[1], {KEPT_SECONDS})
for i = 3, #ARGV, 1000 do redis.call('SADD', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
return redis.call('EXPIRE', KEYS[2], {2 * KEPT_SECONDS})
"""
"""Note a worker. KEYS: the notes, the digest's queues. ARGV: the note, for how many seconds it counts, the queues if they are
to be written. Returns 0 where nobody has written the queues yet.
"""

LEAVE = """
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', string.format('%.3f', clock[1] + clock[2] / 1000000), ARGV[1])
return 1
"""
"""A worker ends, or consumes other queues from now on. KEYS: the notes. ARGV: its note."""

UNSERVED = f"""
-- For how many ms nobody has consumed a queue; -1 if somebody does. `base` is what our keys begin with.
local function unserved_ms(base, queue)
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
  local oldest = string.format('%.3f', now - {KEPT_SECONDS})
  local notes = redis.call('ZREVRANGEBYSCORE', base .. 'consumers', '+inf', oldest, 'WITHSCORES')
  local consumes, noted, last = {{}}, {{}}, nil
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
  for _, lane in ipairs({{'fast', 'slow'}}) do
    for _, note in ipairs(redis.call('ZRANGEBYSCORE', base .. 'slots:' .. lane, now - {SLOTS_COUNT_SECONDS}, '+inf')) do
      local worker = string.match(note, '^%d+ (%S+)')
      if worker and (noted[worker] or 0) < now - {2 * SLOTS_COUNT_SECONDS} then return -1 end
    end
  end
  return math.floor((now - (last or now - {KEPT_SECONDS})) * 1000)
end
"""
"""`unserved_ms(base, queue)`, with the queue by its key. It reads the notes from the one that counts longest on."""

COUNT = f"""
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local workers, found = {{}}, {{}}
for _, note in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.3f', now), '+inf')) do
  local worker, digest = string.match(note, '^(%S+) (%S+)$')
  if worker and worker ~= '{RESTART}' then workers[digest] = (workers[digest] or 0) + 1 end
end
for digest, count in pairs(workers) do
  for _, queue in ipairs(redis.call('SMEMBERS', KEYS[2] .. digest)) do found[#found + 1] = {{queue, count}} end
end
return found
"""
"""KEYS: the notes, what the keys of their queues begin with. Returns queues, by their keys, and how many workers have each: a queue
comes as often as there are digests with it.
"""

LOOK = f"""{UNSERVED}
return unserved_ms(string.match(KEYS[1], '^(.*)consumers$'), KEYS[2])
"""
"""KEYS: the notes, a queue. Returns what `unserved_ms` does. Changes nothing."""
