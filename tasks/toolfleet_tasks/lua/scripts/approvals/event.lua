-- `approval_event(events, channel, id, kind)`: notes what has happened to an approval where all that may see it hear of it.
-- constants: APPROVAL_EVENTS_KEPT, APPROVAL_EVENTS_SECONDS

local function approval_event(events, channel, id, kind)
  redis.call('XADD', events, 'MAXLEN', '~', APPROVAL_EVENTS_KEPT, '*', 'id', id, 'kind', kind)
  redis.call('EXPIRE', events, APPROVAL_EVENTS_SECONDS)
  redis.call('PUBLISH', channel, id)
end
