-- Stores what is known of a call, or forgets it, if what is there is what was seen.
-- seen: the token of what must be there, '' for nothing. value: `<token>`, a line feed, the record; '' to forget it.
-- kept_field: under which it is noted when something was last written to be kept for that long.
-- keys: reply, replies
-- args: seen, value, kept_ms, kept_field, now_s

local found = redis.call('GET', reply)
if seen == '' then
  if found then return 0 end
elseif not found or string.sub(found, 1, #seen + 1) ~= seen .. '\n' then
  return 0
end
if value == '' then
  redis.call('DEL', reply)
else
  redis.call('SET', reply, value, 'PX', kept_ms)
  redis.call('HSET', replies, kept_field, now_s)
end
return 1
