-- Takes a host's heartbeat. One that was not there, or says something else of itself than before, is a change.
-- hosts: `<first heartbeat, ms> <mark> <text>` by member, which is `<module> <id>`; also of those that are gone, for kept_s.
-- heartbeats: the live members, by when they were heard (ms). One that was silent for ttl_ms begins anew.
-- fetch: who asks the module for its manifest; a pause that is left there is not this host's.
-- mark: another one for each thing that the fleet must learn of.
-- keys: hosts, heartbeats, revision, fetch
-- args: channel, ttl_ms, kept_s, module, id, mark, text
-- include: directory/changed, directory/redis_time

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
