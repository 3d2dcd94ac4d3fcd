-- `changed(new)`: gives agents' profiles a new revision, and has agents and workers read what they know of tools anew.

local function changed(new)
  redis.call('SET', revision, new)
  redis.call('INCR', manifests)
  redis.call('PUBLISH', channel, '')
end
