-- Says whether a call would be let in now. Takes nothing: whoever lets it in judges anew.
-- has_intent: '1' if the call has an idempotency key: where that stands for a call, this one joins it and counts nowhere. Else
--   any key stands in its place. Of each limit: daily: how many calls a day, 0 for any number; cooldown: ms;
--   total: how many calls in all, -1 for any number, and then kept for so many ms after the last.
-- keys: intent, limits...
-- args: has_intent, terms(daily, cooldown, total, kept)...
-- include: now, limits/limits

if has_intent == '1' and redis.call('EXISTS', intent) == 1 then return 0 end
return limits_refuse(limits, terms, now) or 0
