-- `unserved_ms(base, queue)`: for how many ms nobody has consumed a queue; -1 if somebody does. `base` is what our keys begin
-- with, `queue` a key. It reads the notes from the one that counts longest on.
-- constants: KEPT_SECONDS, SLOTS_COUNT_SECONDS

local function unserved_ms(base, queue)
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
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
