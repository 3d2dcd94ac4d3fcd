-- Tells which hosts there are, live or gone. Those that have been silent for ttl_ms are gone from then on, which is a change.
-- A time of heartbeat that is as far ahead was given before Redis's clock was set back.
-- keys: hosts, heartbeats, revision
-- args: channel, ttl_ms
-- include: directory/changed, directory/redis_time

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
