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
local most, which, is_daily, counts, names, known = 0, 0, 0, {}, {}, {}
for i, key in ipairs(limits) do
  local function rest_of(key, term)
    counts[i] = redis.call('ZSCORE', key, call_id)
    if counts[i] then return limit_rest_of(key, call_id, term, now) end
    -- It was noted on a day that nobody counts any more.
    counts[i] = string.find(' ' .. noted .. ' ', ' ' .. key .. ' ', 1, true) and 'noted'
    if counts[i] then return 0, 0 end
    return limit_rest(key, term, now)
  end
  local rest, day = limit_asked(key, terms[i], now, rest_of)
  names[i], known[key] = key, true
  if rest > most then most, which, is_daily = rest, i, day end
end
if most > 0 then return {'limited', which, is_daily, most, now} end
for i, key in ipairs(limits) do
  if counts[i] == 'noted' or (counts[i] and limit_is_total(terms[i])) then
    redis.call('ZREM', key .. ':unbegun', call_id)
  else
    limit_take(key, call_id, terms[i], now)
  end
end
for key in string.gmatch(noted, '%S+') do
  if not known[key] then
    redis.call('ZREM', key .. ':unbegun', call_id)
    names[#names + 1] = key
  end
end
if #names > 0 then redis.call('SET', held, table.concat(names, ' '), 'PX', held_ms) end
return 0
