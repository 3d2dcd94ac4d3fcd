-- Puts back the messages whose lease has run out, the oldest to be next. A message says in `died` which holders it had when they
-- died, as far as they are not back. The leases of messages that could not be put back begin anew.
-- began_by: when those leases began at the latest. now: the time. Both must come from an answer of this Redis to this
--   connection: one that froze with the script in its socket runs it when it wakes, and by its own clock then every lease would
--   have run out.
-- most: how many at most.
-- channel_prefix, ending_prefix: of holders' channels, and of notes that they were told to end.
-- keys: unacked, unacked_index
-- args: queue_prefix, notify_prefix, began_by, most, now, channel_prefix, ending_prefix
-- include: queues/requeue_one, queues/deaths

-- Begun before the clock was set back: as nobody may be there who renews them, they begin now.
local clock = redis.call('TIME')
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', unacked_index, clock[1] + 2, '+inf', 'LIMIT', 0, most)) do
  redis.call('ZADD', unacked_index, clock[1], tag)
end
local tags = redis.call('ZRANGEBYSCORE', unacked_index, '-inf', began_by, 'LIMIT', 0, most)
local restored, stuck = 0, 0
for i = #tags, 1, -1 do
  mark_deaths(tags[i])
  local count, must_stay = requeue(tags[i], true)
  restored = restored + count
  if must_stay then
    redis.call('ZADD', unacked_index, now, tags[i]) -- out of the way of the others, which come after it
    stuck = stuck + 1
  end
end
return {#tags, restored, stuck}
