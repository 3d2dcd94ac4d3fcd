-- Pins a tool of a module that is pinned.
-- module_field: the module's own. tool_field: the tool's.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, module_field, tool_field, digest
-- include: store/events

if redis.call('HEXISTS', pins, module_field) == 0 then return 0 end
if redis.call('HGET', pins, tool_field) ~= digest then
  redis.call('HSET', pins, tool_field, digest)
  changes = 1
end
return done(1)
