-- Puts in what a process has in its settings. An entry that other processes feed now, and that says something else, stays.
-- feeds: what is fed now, by when (s): `<module> <mark>`, and `*` for whoever feeds.
-- counts_s: for so long a feeding counts. mark: an entry's, the first 16 digits of its SHA-1.
-- keys: directory, revision, feeds
-- args: channel, counts_s, modules(name, entry, mark)...
-- include: directory/changed

local now = tonumber(redis.call('TIME')[1])
local answers = {}
for _, module in ipairs(modules) do
  local there = redis.call('HGET', directory, module.name) or ''
  local answer = ''
  if there ~= module.entry then
    local readable, entry = pcall(cjson.decode, string.match(there, '{.*$') or '')
    local is_static = readable and type(entry) == 'table' and entry.origin == 'settings'
    local fed_at = redis.call('ZSCORE', feeds, module.name .. ' ' .. string.sub(redis.sha1hex(there), 1, 16))
    answer = there
    if not (is_static and fed_at and tonumber(fed_at) > now - counts_s) then
      redis.call('HSET', directory, module.name, module.entry)
      changed(module.name)
    end
  end
  redis.call('ZADD', feeds, now, module.name .. ' ' .. module.mark)
  answers[#answers + 1] = answer
end
redis.call('ZADD', feeds, now, '*')
redis.call('ZREMRANGEBYSCORE', feeds, '-inf', '(' .. (now - counts_s))
redis.call('EXPIRE', feeds, 2 * counts_s)
return answers
