-- Stores a module's pins in the place of those that it has.
-- module_field: the module's own.
-- keys: tools, events, revision, pins, earlier
-- args: events_kept, module_field, fields(name, digest)...
-- include: store/write_pins

local wanted = {}
for _, field in ipairs(fields) do wanted[field.name] = field.digest end
write_pins(wanted, module_field)
return done(1)
