-- Puts events of the registry into the outbox for one receiver, and moves its position.
-- due: of wake-ups. receiver_due: of this receiver. at: the position after which the events were read. to: the new one.
-- prefix: what the hashes' names begin with.
-- keys: positions, due, receiver_due, clock_key
-- args: receiver, at, to, prefix, events(id, body)...
-- include: wakeups/now, wakeups/put
-- constants: MOST_EVENTS_WAITING

if redis.call('HGET', positions, receiver) ~= at then return 'moved' end
if #events > 0 and redis.call('ZCARD', receiver_due) + #events > MOST_EVENTS_WAITING then return 'full' end
for _, event in ipairs(events) do
  wake_put(prefix .. event.id, due, event.id, now, 'registry', event.body)
end
redis.call('HSET', positions, receiver, to)
return 'fed'
