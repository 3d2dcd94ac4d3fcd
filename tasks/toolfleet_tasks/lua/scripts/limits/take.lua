-- Has a call that is about to begin count for good in its limits: in those in which it does not yet, if there is room; and in
-- those in which whoever let it in had it count.
-- held: where its limits are noted, for `held_ms`.
-- daily: how many calls a day, 0 for any number. cooldown: ms. total: how many calls in all, -1 for any number, and then kept for
-- so many ms after the last.
-- keys: held, record, limits...
-- args: token, call_id, held_ms, terms(daily, cooldown, total, kept)...
-- include: now, limits/limits

local found = redis.call('HMGET', record, 'token', 'begun', 'state')
if found[1] ~= token and (found[1] or found[2] or found[3]) then return -1 end
local noted = redis.call('GET', held) or ''
local most, which, is_daily, is_held, names = 0, 0, 0, {}, {}
for i, key in ipairs(limits) do
  local rest, day = 0, 0
  limit_forget(key, now)
  names[i] = key
  if redis.call('ZSCORE', key, call_id) then
    rest, day = limit_rest_of(key, call_id, terms[i], now)
  elseif string.find(' ' .. noted .. ' ', ' ' .. key .. ' ', 1, true) then
    is_held[i] = true -- on a day that nobody counts any more
  else
    rest, day = limit_rest(key, terms[i], now)
  end
  if rest > most then most, which, is_daily = rest, i, day end
end
if most > 0 then return {'limited', which, is_daily, most, now} end
for i, key in ipairs(limits) do
  if not is_held[i] then limit_take(key, call_id, terms[i], now) end
end
for key in string.gmatch(noted, '%S+') do
  redis.call('ZREM', key .. ':unbegun', call_id)
  if not string.find(' ' .. table.concat(names, ' ') .. ' ', ' ' .. key .. ' ', 1, true) then names[#names + 1] = key end
end
if #names > 0 then redis.call('SET', held, table.concat(names, ' '), 'PX', held_ms) end
return 0
