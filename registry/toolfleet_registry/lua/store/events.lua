-- `time`: the server's. `epoch_of_events()`: when the registry's first change was (ms), which is now if there was none.
-- `note(kind, name, version, digest)`: adds an event.
-- `changes`: how many there were so far. `done(reply)`: the reply; the registry's revision is another one if there were any.

local time = redis.call('TIME')

local function epoch_of_events()
  local epoch = redis.call('HGET', revision, 'epoch')
  if epoch then return epoch end
  -- Later than whatever is left of an earlier registry, wherever the clock stands.
  epoch = time[1] .. string.sub('00000' .. time[2], -6, -4)
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local least = last and tonumber(string.match(last[1], '^%d+')) + 1 or 0
  if tonumber(epoch) < least then epoch = string.format('%.0f', least) end
  redis.call('HSET', revision, 'epoch', epoch)
  return epoch
end

local function note(kind, name, version, digest)
  local id = epoch_of_events() .. '-' .. redis.call('HINCRBY', revision, 'events', 1)
  local at = time[1] .. '.' .. string.sub('00000' .. time[2], -6)
  redis.call('XADD', events, id, 'kind', kind, 'tool', name, 'version', version, 'digest', digest, 'at', at)
end

local changes = 0

local function done(reply)
  if changes > 0 then
    redis.call('XTRIM', events, 'MAXLEN', events_kept)
    epoch_of_events()
    redis.call('HINCRBY', revision, 'revision', 1)
  end
  return reply
end
