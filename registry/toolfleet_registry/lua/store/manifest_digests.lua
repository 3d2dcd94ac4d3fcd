-- Tells which manifests are kept, without their text.
-- manifests: a hash, module -> 64 digits, a line feed, the text. modules: at most 1,000.
-- keys: manifests
-- args: modules...

local digests = {}
for i, value in ipairs(redis.call('HMGET', manifests, unpack(modules))) do
  digests[i] = value and string.sub(value, 1, 64) or ''
end
return digests
