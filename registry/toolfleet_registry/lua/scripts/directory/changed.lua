-- `changed(module)`: counts a change of the directory, and announces it on the channel that tells of changed manifests.

local function changed(module)
  redis.call('INCR', revision)
  redis.call('PUBLISH', channel, module)
end
