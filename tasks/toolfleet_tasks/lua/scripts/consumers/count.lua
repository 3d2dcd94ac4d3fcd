-- Which queues workers consume.
-- consumed_prefix: what the keys of the digests' queues begin with.
-- keys: notes, consumed_prefix
-- constants: RESTART

local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local workers, found = {}, {}
for _, note in ipairs(redis.call('ZRANGEBYSCORE', notes, string.format('%.3f', now), '+inf')) do
  local worker, digest = string.match(note, '^(%S+) (%S+)$')
  if worker and worker ~= RESTART then workers[digest] = (workers[digest] or 0) + 1 end
end
for digest, count in pairs(workers) do
  for _, queue in ipairs(redis.call('SMEMBERS', consumed_prefix .. digest)) do found[#found + 1] = {queue, count} end
end
return found
