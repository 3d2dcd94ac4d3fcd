-- Tells what is stored of a tool, and what of its earlier specifications, at one moment.
-- keys: tools, earlier
-- args: name

return {redis.call('HGET', tools, name), redis.call('HGET', earlier, name)}
