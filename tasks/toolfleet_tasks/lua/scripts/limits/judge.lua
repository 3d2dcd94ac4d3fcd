-- Says whether a call would be let in now. Takes nothing: whoever lets it in judges anew.
-- has_intent: '1' if the call has an idempotency key: where that stands for a call, this one joins it and counts nowhere. Else
--   any key stands in its place. Of each limit: daily: how many calls a day, 0 for any number; cooldown: ms.
-- keys: intent, limits...
-- args: has_intent, terms(daily, cooldown)...
-- include: now, limits/limits

if has_intent == '1' and redis.call('EXISTS', intent) == 1 then return 0 end
local most, which, is_daily = 0, 0, 0
for i, key in ipairs(limits) do
  limit_forget(key, now)
  local rest, day = limit_rest(key, tonumber(terms[i].daily), tonumber(terms[i].cooldown), now)
  if rest > most then most, which, is_daily = rest, i, day end
end
if most > 0 then return {'limited', which, is_daily, most, now} end
return 0
