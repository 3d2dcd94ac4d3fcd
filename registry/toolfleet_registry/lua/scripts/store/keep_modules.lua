-- Keeps a copy of the directory of modules in the place of the last one.
-- keys: copy
-- args: modules(name, entry)...

redis.call('DEL', copy)
for _, module in ipairs(modules) do redis.call('HSET', copy, module.name, module.entry) end
