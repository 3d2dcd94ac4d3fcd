-- What is used of limits. Of each: daily: how many calls a day, 0 for any number; cooldown: ms.
-- keys: limits...
-- args: terms(daily, cooldown)...
-- include: now, limits/limits

local answer = {now}
for i, key in ipairs(limits) do
  limit_forget(key, now)
  local rest = limit_rest(key, tonumber(terms[i].daily), tonumber(terms[i].cooldown), now)
  answer[#answer + 1] = redis.call('ZCOUNT', key, now - now % day_ms, '+inf')
  answer[#answer + 1] = rest
end
return answer
