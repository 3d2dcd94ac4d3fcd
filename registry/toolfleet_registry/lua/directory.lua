-- The directory of modules, and what their hosts say of themselves. Of the arguments:
-- hosts: `<first heartbeat, ms> <mark> <text>` by member, which is `<module> <id>`; also of those that are gone, for kept_s.
-- heartbeats: the live members, by when they were heard (ms). One that was silent for ttl_ms begins anew.
-- feeds: what is fed now, by when (s): `<module> <mark>`, and `*` for whoever feeds. counts_s: for so long a feeding counts.
-- include: clock

-- Counts a change of the directory, and announces it on the channel that tells of changed manifests.
local function changed(module)
  redis.call('INCR', revision)
  redis.call('PUBLISH', channel, module)
end

-- script: replace(directory, revision; channel, module, expected, entry)
-- Stores a module's entry, or removes it, if what is stored now is what was expected.
-- expected: what must be there. entry: what is to be. '' for nothing.
local there = redis.call('HGET', directory, module) or ''
if there ~= expected then return 0 end
if entry == '' then redis.call('HDEL', directory, module) else redis.call('HSET', directory, module, entry) end
changed(module)
return 1

-- script: feed(directory, revision, feeds; channel, counts_s, modules(name, entry, mark)...)
-- Puts in what a process has in its settings. An entry that other processes feed now, and that says something else, stays.
-- mark: an entry's, the first 16 digits of its SHA-1.
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

-- script: ask(asked, waiting; together_ms, prefix)
-- Asks for a look at all modules that begins after this moment: one that has begun may have asked a module before it.
-- asked: how many were asked for. waiting: the one that nobody has begun, which is shared for together_ms.
-- prefix: what the keys of single looks begin with.
local number = redis.call('GET', waiting)
if number and redis.call('EXISTS', prefix .. number) == 0 then return tonumber(number) end
number = redis.call('INCR', asked)
redis.call('SET', waiting, number, 'PX', together_ms)
return number

-- script: announce(hosts, heartbeats, revision, fetch; channel, ttl_ms, kept_s, module, id, mark, text)
-- Takes a host's heartbeat. One that was not there, or says something else of itself than before, is a change.
-- fetch: who asks the module for its manifest; a pause that is left there is not this host's.
-- mark: another one for each thing that the fleet must learn of.
local member = module .. ' ' .. id
local first, before = string.match(redis.call('HGET', hosts, member) or '', '^(%d+) (%S+) ')
local heard = tonumber(redis.call('ZSCORE', heartbeats, member) or '')
local is_live = first and heard and math.abs(now_ms - heard) < tonumber(ttl_ms)
if not is_live then first = string.format('%.0f', now_ms) end
redis.call('HSET', hosts, member, first .. ' ' .. mark .. ' ' .. text)
redis.call('ZADD', heartbeats, string.format('%.0f', now_ms), member)
redis.call('EXPIRE', hosts, kept_s)
redis.call('EXPIRE', heartbeats, kept_s)
if not is_live or before ~= mark then
  redis.call('DEL', fetch)
  changed(module)
end
return now_ms

-- script: hosts(hosts, heartbeats, revision; channel, ttl_ms)
-- Tells which hosts there are, live or gone. Those that have been silent for ttl_ms are gone from then on, which is a change.
-- A time of heartbeat that is as far ahead was given before Redis's clock was set back.
local silent = redis.call('ZRANGEBYSCORE', heartbeats, '-inf', string.format('%.0f', now_ms - ttl_ms))
local ahead = redis.call('ZRANGEBYSCORE', heartbeats, string.format('%.0f', now_ms + ttl_ms), '+inf')
for _, members in ipairs({silent, ahead}) do
  for _, member in ipairs(members) do
    redis.call('ZREM', heartbeats, member)
    changed(string.match(member, '^%S*'))
  end
end
local answer = {now_ms}
local stored = redis.call('HGETALL', hosts)
for i = 1, #stored, 2 do
  answer[#answer + 1] = stored[i]
  answer[#answer + 1] = stored[i + 1]
  answer[#answer + 1] = redis.call('ZSCORE', heartbeats, stored[i]) and 1 or 0
end
return answer

-- script: leave(heartbeats, revision; channel, module, id)
-- Notes that a host is gone, in good order. What it has said stays, so that the module is known while it is away.
if redis.call('ZREM', heartbeats, module .. ' ' .. id) == 1 then changed(module) end
local others = 0
for _, member in ipairs(redis.call('ZRANGE', heartbeats, 0, -1)) do
  if string.sub(member, 1, #module + 1) == module .. ' ' then others = others + 1 end
end
return others

-- script: forget_hosts(hosts, heartbeats, revision; channel, members(member, value)...)
-- Removes what hosts have said that are gone, if it still is what was read.
for _, gone in ipairs(members) do
  if not redis.call('ZSCORE', heartbeats, gone.member) and redis.call('HGET', hosts, gone.member) == gone.value then
    redis.call('HDEL', hosts, gone.member)
    changed(string.match(gone.member, '^%S*'))
  end
end
return 0
