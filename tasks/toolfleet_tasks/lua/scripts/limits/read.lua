-- What is used of limits. Of each: daily: how many calls a day, 0 for any number; cooldown: ms.
-- total: how many calls in all, -1 for any number, and then kept for so many ms after the last.
-- keys: limits...
-- args: terms(daily, cooldown, total, kept)...
-- include: now, limits/limits

local answer = {now}
for i, key in ipairs(limits) do
  limit_forget(key, now)
  local rest = limit_rest(key, terms[i], now)
  answer[#answer + 1] = redis.call('ZCOUNT', key, limit_is_total(terms[i]) and '-inf' or now - now % day_ms, '+inf')
  answer[#answer + 1] = rest
end
return answer
