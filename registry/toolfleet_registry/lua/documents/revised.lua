-- `revised(new)`: sets the revision of documents, and announces that, unless `channel` is ''.

local function revised(new)
  redis.call('SET', revision, new)
  if channel == '' then return end
  redis.call('INCR', announced)
  redis.call('PUBLISH', channel, '')
end
