-- `changes`: how many there were so far. `done(reply)`: the reply; the registry's revision is another one if there were any.
-- include: store/events

local changes = 0

local function done(reply)
  if changes > 0 then
    redis.call('XTRIM', events, 'MAXLEN', events_kept)
    epoch_of_events()
    redis.call('HINCRBY', revision, 'revision', 1)
  end
  return reply
end
