-- How many calls the workers of a lane run at once, each by its note, `<how many> <worker>`, and more perhaps. Times are in
-- seconds. `slots_sum(key, since_s)`: the sum of what was noted since then. `slots_note(key, note, counts_s)` notes a worker's,
-- by the server's clock, and forgets those of workers that have been silent for longer than a note counts.

local function slots_sum(key, since_s)
  local sum = 0
  for _, note in ipairs(redis.call('ZRANGEBYSCORE', key, since_s, '+inf')) do
    sum = sum + (tonumber(string.match(note, '^%d+')) or 0)
  end
  return sum
end

local function slots_note(key, note, counts_s)
  local clock = redis.call('TIME')
  redis.call('ZADD', key, clock[1], note)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', clock[1] - counts_s - 1)
  redis.call('ZREMRANGEBYSCORE', key, clock[1] + 1, '+inf') -- the clock was set back: who lives says so again
  redis.call('EXPIRE', key, counts_s)
end
