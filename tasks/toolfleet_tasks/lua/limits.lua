-- A user's limits: which calls count in each, since when. Of its terms: most: how many calls in a window of so many ms of the
-- server's clock, 0 for any number; cooldown: ms, 0 for none. A window of 0 is for all calls there ever were: then 0 is none, and
-- they are kept for so many ms after the last.
-- A limit is a sorted set of call ids with the time (ms, the server's) from which each counts. A second set has those that no
-- worker has started yet, each until its deadline: one that passes it was never started, and counts no longer. The limits of a
-- call are noted under its own key, by which it is given back at any end.
-- Times are passed in. A function that is called again with the same id changes nothing more. Every key that one writes has a
-- TTL.
-- include: clock

local limit_margin_ms = 60000
local never_ms = 9e15 -- a total is used up for good

local function limit_is_total(term)
  return tonumber(term.window) == 0
end

-- Comes before the others, which count what is there. Forgets those that nobody ever began: their agent died before it had
-- published them, or their message is lost. And what would count from later on: the server's clock was set back.
local function limit_forget(key, now)
  if tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0) > now then
    local after = '(' .. string.format('%.0f', now)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, 500)) do redis.call('ZADD', key, now, id) end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key .. ':unbegun', '-inf', now, 'LIMIT', 0, 500)) do
    redis.call('ZREM', key, id)
    redis.call('ZREM', key .. ':unbegun', id)
  end
end

-- The ms until a call may be let in, 0 for now, and 1 if that is for the window's limit, 2 if the total is used up.
local function limit_rest(key, term, now)
  local most, window, cooldown = tonumber(term.most), tonumber(term.window), tonumber(term.cooldown)
  if limit_is_total(term) then
    if redis.call('ZCARD', key) >= most then return never_ms, 2 end
    return 0, 0
  end
  local rest, kind, began = 0, 0, now - now % window
  if most > 0 and redis.call('ZCOUNT', key, began, '+inf') >= most then rest, kind = began + window - now, 1 end
  local newest = cooldown > 0 and redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if newest and newest + cooldown - now > rest then rest, kind = newest + cooldown - now, 0 end
  return rest, kind
end

-- The same of a call that counts already: 0 if it was let in rightly. Whoever let it in may have known of other terms.
local function limit_rest_of(key, id, term, now)
  local most, window, cooldown = tonumber(term.most), tonumber(term.window), tonumber(term.cooldown)
  if limit_is_total(term) then
    if redis.call('ZCARD', key) > most and redis.call('ZRANK', key, id) >= most then return never_ms, 2 end
    return 0, 0
  end
  local mine, rank = tonumber(redis.call('ZSCORE', key, id)), redis.call('ZRANK', key, id)
  local rest, kind = 0, 0
  local before = '(' .. string.format('%.0f', mine - mine % window)
  if most > 0 and rank - redis.call('ZCOUNT', key, '-inf', before) >= most then
    rest, kind = math.max(window - now % window, 1), 1
  end
  local last = cooldown > 0 and rank > 0 and redis.call('ZRANGE', key, rank - 1, rank - 1, 'WITHSCORES')[2]
  if last and mine - last < cooldown then rest = math.max(rest, last + cooldown - now, 1) end
  return rest, kind
end

-- Has `rest` asked when what counts no longer is forgotten. Of a total, that matters only where it is used up.
local function limit_asked(key, term, now, rest)
  if limit_is_total(term) then
    local ms, kind = rest(key, term, now)
    if ms == 0 then return 0, kind end
  end
  limit_forget(key, now)
  return rest(key, term, now)
end

-- What refuses a call, nil for nothing.
local function limits_refuse(limits, terms, now)
  local most, which, kind = 0, 0, 0
  for i, key in ipairs(limits) do
    local rest, found = limit_asked(key, terms[i], now, limit_rest)
    if rest > most then most, which, kind = rest, i, found end
  end
  if most > 0 then return {'limited', which, kind, most, now} end
end

-- For the margin beyond, of which half may be used up: so not each call has to say so.
local function limit_keep(key, ms)
  if redis.call('PTTL', key) < ms + limit_margin_ms / 2 then redis.call('PEXPIRE', key, ms + limit_margin_ms) end
end

-- Has a call count, from when it did before, if it did; until then only, if it is not begun by then, or without an `until_ms` for
-- good.
local function limit_take(key, id, term, now, until_ms)
  local window, cooldown = tonumber(term.window), tonumber(term.cooldown)
  if limit_is_total(term) then
    redis.call('ZADD', key, 'NX', now, id)
    limit_keep(key, tonumber(term.kept))
  else
    if not redis.call('ZSCORE', key, id) then -- one that counts since the window before does not count anew in this one
      -- The newest one stays, for the tool may have a longer cooldown where it is called in another way.
      local since = math.min(now - now % window, now - cooldown)
      local old = redis.call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', since))
      old = math.min(old, redis.call('ZCARD', key) - 1)
      if old > 0 then redis.call('ZREMRANGEBYRANK', key, 0, old - 1) end
      redis.call('ZADD', key, now, id)
    end
    limit_keep(key, math.max(window - now % window, cooldown))
  end
  if not until_ms then
    redis.call('ZREM', key .. ':unbegun', id)
    return
  end
  redis.call('ZADD', key .. ':unbegun', until_ms, id)
  limit_keep(key .. ':unbegun', math.max(until_ms - now, 0))
end

-- The call has done nothing, so it counts in no limit any more.
local function limits_return(held_key, id)
  local held = redis.call('GET', held_key)
  if not held then return end
  for key in string.gmatch(held, '%S+') do
    redis.call('ZREM', key, id)
    redis.call('ZREM', key .. ':unbegun', id)
  end
  redis.call('DEL', held_key)
end

-- script: take(held, record, limits...; token, call_id, held_ms, terms(most, window, cooldown, kept)...)
-- Has a call that is about to begin count for good in its limits: in those in which it does not yet, if there is room; and in
-- those in which whoever let it in had it count. held: where its limits are noted, for `held_ms`.
local found = redis.call('HMGET', record, 'token', 'begun', 'state')
if found[1] ~= token and (found[1] or found[2] or found[3]) then return -1 end
local noted = redis.call('GET', held) or ''
local most, which, kind, counts, names, known = 0, 0, 0, {}, {}, {}
for i, key in ipairs(limits) do
  local function rest_of(key, term)
    counts[i] = redis.call('ZSCORE', key, call_id)
    if counts[i] then return limit_rest_of(key, call_id, term, now) end
    -- It was noted in a window that nobody counts any more.
    counts[i] = string.find(' ' .. noted .. ' ', ' ' .. key .. ' ', 1, true) and 'noted'
    if counts[i] then return 0, 0 end
    return limit_rest(key, term, now)
  end
  local rest, found_kind = limit_asked(key, terms[i], now, rest_of)
  names[i], known[key] = key, true
  if rest > most then most, which, kind = rest, i, found_kind end
end
if most > 0 then return {'limited', which, kind, most, now} end
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

-- script: judge(intent, limits...; has_intent, terms(most, window, cooldown, kept)...)
-- Says whether a call would be let in now. Takes nothing: whoever lets it in judges anew.
-- has_intent: '1' if the call has an idempotency key: where that stands for a call, this one joins it and counts nowhere. Else
--   any key stands in its place.
if has_intent == '1' and redis.call('EXISTS', intent) == 1 then return 0 end
return limits_refuse(limits, terms, now) or 0

-- script: read(limits...; terms(most, window, cooldown, kept)...)
-- What is used of limits.
local answer = {now}
for i, key in ipairs(limits) do
  limit_forget(key, now)
  local rest, since = limit_rest(key, terms[i], now), limit_is_total(terms[i]) and '-inf' or now - now % terms[i].window
  answer[#answer + 1] = redis.call('ZCOUNT', key, since, '+inf')
  answer[#answer + 1] = rest
end
return answer
