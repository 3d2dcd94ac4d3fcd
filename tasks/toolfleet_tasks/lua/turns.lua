-- Turns: which calls of a line run, and which wait for them. A line is `<module>:<digest>`.
-- A turn is a call's from the script that gives it to the call's end, and at most until a time. A call that waits is in the line,
-- by the order in which it was let in, with `<deadline> <limit> <queue> <place> <message>`: where its message belongs (the key of
-- a queue, which is `here`, or elsewhere). A call's place and line are noted under its own key, for whoever ends it.
-- A job's first call keeps its turn until the job has ended. Its other calls in the same line have turns too, whatever the limit:
-- one of them may be at work when the job ends.
-- Times are in ms, by the fleet's clock. All keys expire, those of a line when nobody needs it. Of the arguments:
-- base: what our own keys begin with. line: of a call; limit: how many of its line may run while it does.
-- now_ms: the fleet's time, as the caller knows it: a script that is run late, or by a clock that was set, takes no turn away.
-- Where a script has no such time, no call is late: a worker ends it at once, and its turn passes on.
-- include: clock

local TURN_MARGIN_MS = 30000 -- after its deadline nobody is at a call any more: clocks differ
local LINE_KEPT_MS = 3600000 -- so much longer than needed: Redis's clock may be set forward
local LINE_LOOKED_AT_MS = 300000 -- a process of an older version may have ended the call with the turn, and knows of none
local PASSED_AT_ONCE = 100
local LOOKED_AT_ONCE = 20
local JOB_KEPT_MS = 600000 -- after a job is due: all workers may be away for a while

-- The keys of the calls that have a line's turns, of those that wait, and of their messages.
local function line_keys(base, line)
  return base .. 'turns:' .. line, base .. 'line:' .. line, base .. 'line-messages:' .. line
end

local function line_keep(key, until_ms)
  local clock = redis.call('TIME')
  local rest = math.max(math.ceil(until_ms - clock[1] * 1000), 0)
  if redis.call('PTTL', key) < rest then redis.call('PEXPIRE', key, rest + LINE_KEPT_MS) end
end

local function turn_give(turns, call_id, until_ms)
  redis.call('ZADD', turns, until_ms, call_id)
  line_keep(turns, until_ms)
end

-- A call's place in its line, and that line; nil for none.
local function turn_line(base, call_id)
  return string.match(redis.call('GET', base .. 'turn-of:' .. call_id) or '', '^(%d+) (.*)$')
end

-- The job whose first call this is, and that has not ended; false for none.
local function turn_job(base, call_id)
  local id = string.match(call_id, '^(.+)%.0$')
  local found = id and redis.call('HMGET', base .. 'job:' .. id, 'at', 'end')
  return found and found[1] and not found[2] and base .. 'job:' .. id
end

local function turn_has(base, line, call_id)
  return redis.call('ZSCORE', base .. 'turns:' .. line, call_id)
end

-- An attempt begins: its call has the turn that it has for as long as that may last.
local function turn_hold(base, line, call_id, ends_ms)
  redis.call('ZADD', base .. 'turns:' .. line, 'XX', 'GT', ends_ms + TURN_MARGIN_MS, call_id)
end

-- Publishes the message of a call that waits. False if that cannot be.
local function line_publish(base, queue, place, message, deadline_ms)
  if place ~= 'here' then
    redis.call('ZADD', base .. 'line-outbox', 0, queue .. ' ' .. message)
    line_keep(base .. 'line-outbox', deadline_ms)
    return true
  end
  if type(redis.pcall('LPUSH', queue, message)) ~= 'number' then return false end -- somebody's key of another type
  local notify_key = base .. 'bell:' .. string.sub(queue, #base - 9) -- `toolfleet:` is behind the prefix that queues have, too
  if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
  return true
end

-- Counts the calls that wait in lines for a queue, and the bytes of their messages: they are part of its backlog.
local function line_count(base, queue, calls, bytes)
  local key = base .. 'line-load:' .. queue
  local is_empty = redis.call('HINCRBY', key, 'calls', calls) <= 0
  if redis.call('HINCRBY', key, 'bytes', bytes) < 0 or is_empty then redis.call('DEL', key) end
  return key
end

-- Has a call wait no longer.
local function line_leave(base, line, call_id)
  local _, waiting, messages = line_keys(base, line)
  redis.call('ZREM', waiting, call_id)
  local kept = redis.call('HGET', messages, call_id)
  if not kept then return end
  redis.call('HDEL', messages, call_id)
  line_count(base, string.match(kept, '^%d+ %d+ (%S+)'), -1, -#kept)
end

-- Notes when a line is to be looked at: a turn of it may be lost, or the deadline of its first call is over. due_ms: if known.
local function line_note(base, line, now_ms, due_ms)
  local turns, waiting, messages = line_keys(base, line)
  local head = redis.call('ZRANGE', waiting, 0, 0)[1]
  local lost_ms = tonumber(redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2])
  if not head then -- a turn that is kept after its call's end may be there
    if lost_ms then redis.call('ZADD', base .. 'lines', 'XX', lost_ms, line) else redis.call('ZREM', base .. 'lines', line) end
    return
  end
  local deadline_ms = tonumber(string.match(redis.call('HGET', messages, head) or '', '^%d+') or 0)
  due_ms = due_ms or math.min(deadline_ms, lost_ms or deadline_ms, (now_ms or now) + LINE_LOOKED_AT_MS)
  redis.call('ZADD', base .. 'lines', due_ms, line)
  line_keep(base .. 'lines', deadline_ms)
end

-- Gives the free turns of a line to those that wait, the first one first, at most so many; returns how many have come out.
-- now_ms: where the fleet's time is known: a call whose deadline is over gets no turn then; a worker ends it.
local function line_pass(base, line, most, now_ms)
  local turns, waiting, messages = line_keys(base, line)
  local passed, due_ms = 0
  while true do
    local head = redis.call('ZRANGE', waiting, 0, 0)[1]
    if not head then break end
    local kept = redis.call('HGET', messages, head) or ''
    local deadline_ms, limit, queue, place, message = string.match(kept, '^(%d+) (%d+) (%S+) (%S+) (.*)$')
    local is_late = not deadline_ms or (now_ms and tonumber(deadline_ms) <= now_ms)
    if not is_late and redis.call('ZCARD', turns) >= tonumber(limit) then break end
    if passed >= most then
      due_ms = 0
      break
    end
    if message and not line_publish(base, queue, place, message, deadline_ms) then
      due_ms = (now_ms or now) + LINE_LOOKED_AT_MS
      break
    end
    line_leave(base, line, head)
    if not is_late then turn_give(turns, head, deadline_ms + TURN_MARGIN_MS) end
    passed = passed + 1
  end
  line_note(base, line, now_ms, due_ms)
  return passed
end

-- Takes away the turns whose time is over, but not that of a job which goes on, though nothing has moved it for a while. A call
-- that has not ended comes back to its place in the line.
local function turns_prune(base, line, now_ms)
  local turns = line_keys(base, line)
  for _, call_id in ipairs(redis.call('ZRANGEBYSCORE', turns, '-inf', now_ms, 'LIMIT', 0, PASSED_AT_ONCE)) do
    local job, key = turn_job(base, call_id), base .. 'turn-of:' .. call_id
    if job and redis.call('HGET', job, 'turn') == line then
      turn_give(turns, call_id, now_ms + JOB_KEPT_MS)
      line_keep(key, now_ms + JOB_KEPT_MS)
    else
      redis.call('ZREM', turns, call_id)
      if redis.call('HGET', base .. 'call:' .. call_id, 'state') == 'done' then redis.call('DEL', key) end
    end
  end
end

-- A call has ended: it leaves its line, and its turn passes on; only then, where `until_ms` is given.
local function turn_end(base, call_id, line, until_ms)
  local turns = line_keys(base, line)
  line_leave(base, line, call_id)
  if until_ms then
    redis.call('ZADD', turns, 'XX', 'LT', until_ms, call_id)
  else
    redis.call('ZREM', turns, call_id)
  end
  local kept_ms = until_ms and redis.call('ZSCORE', turns, call_id)
  if not kept_ms then redis.call('DEL', base .. 'turn-of:' .. call_id) end
  line_pass(base, line, PASSED_AT_ONCE)
  if kept_ms and redis.call('ZADD', base .. 'lines', 'NX', kept_ms, line) == 1 then line_keep(base .. 'lines', kept_ms) end
end

-- The turn of a call that has ended passes on, unless its module may be at it: where nobody saw the end of the last attempt in
-- its `log`, for as long as that may last, until `ends_ms`; where its module goes on with it by itself, for as long as it has it.
-- effect_state: what has happened, '' if that is not known here. accepted: whether its module goes on with it.
local function turn_close(base, call_id, line, log, effect_state, ends_ms, accepted)
  local is_unseen = accepted or string.find(log, ' unknown %d+;$') or string.find(log, ' never_closed %d+;$')
  local may_go_on = is_unseen and effect_state ~= 'none' and effect_state ~= 'done'
  turn_end(base, call_id, line, may_go_on and (accepted and 9e15 or tonumber(ends_ms)) or nil)
end

-- A call has ended: its turn passes on, unless its job keeps it.
local function turn_over(base, call_id, log, effect_state, ends_ms, accepted)
  local _, line = turn_line(base, call_id)
  if not line then return end
  local job = effect_state ~= 'none' and effect_state ~= 'unknown' and turn_job(base, call_id)
  if job then
    redis.call('HSET', job, 'turn', line)
    return
  end
  turn_close(base, call_id, line, log, effect_state, ends_ms, accepted)
end

-- A job that has kept the turn of its first call has moved: it keeps it, or gives it back.
local function turn_of_job(base, call_id, line, keeps, due_ms)
  local turns, key = line_keys(base, line), base .. 'turn-of:' .. call_id
  if keeps and due_ms ~= '' then
    redis.call('ZADD', turns, 'XX', 'GT', due_ms + JOB_KEPT_MS, call_id)
    line_keep(turns, due_ms + JOB_KEPT_MS)
    line_keep(key, due_ms + JOB_KEPT_MS)
  elseif not keeps then -- the call's record may have expired
    local found = redis.call('HMGET', base .. 'call:' .. call_id, 'log', 'turn', 'accepted')
    turn_close(base, call_id, line, found[1] or '', '', found[2], found[3])
  end
end

-- The place behind all that wait, also after the clock was set back.
local function line_end(waiting)
  local clock = redis.call('TIME')
  local last = redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return string.format('%.0f', math.max(clock[1] * 1000000 + clock[2], (tonumber(last) or 0) + 1))
end

-- Has a call take a turn, until `until_ms`, or wait for it in its line, where it was. Returns whether it waits.
local function line_enter(base, line, call_id, job_id, limit, deadline_ms, now_ms, until_ms, queue, place, message)
  local turns, waiting, messages = line_keys(base, line)
  local at, of = turn_line(base, call_id)
  if of and of ~= line then -- its tool's key is another one by now
    turn_end(base, call_id, of)
    of = nil
  end
  at = of and at or line_end(waiting)
  turns_prune(base, line, now_ms)
  line_leave(base, line, call_id)
  local is_free = redis.call('ZCARD', turns) < limit and redis.call('ZCOUNT', waiting, '-inf', '(' .. at) == 0
  local has, first = turn_has(base, line, call_id), job_id .. '.0'
  local is_jobs = job_id ~= '' and turn_has(base, line, first) and turn_job(base, first)
  local waits = not is_free and not has and not is_jobs
  redis.call('SET', base .. 'turn-of:' .. call_id, at .. ' ' .. line, 'NX')
  line_keep(base .. 'turn-of:' .. call_id, deadline_ms)
  if waits then
    local kept = string.format('%.0f %d %s %s ', deadline_ms, limit, queue, place) .. message
    redis.call('ZADD', waiting, at, call_id)
    redis.call('HSET', messages, call_id, kept)
    for _, key in ipairs({waiting, messages, line_count(base, queue, 1, #kept)}) do line_keep(key, deadline_ms) end
  elseif not has then
    turn_give(turns, call_id, until_ms)
  end
  line_note(base, line, now_ms)
  return waits
end

-- script: enter(record; base, call_id, job_id, line, limit, deadline_ms, now_ms, queue, place, message)
-- A call without a turn has come to a worker, which lets its message go if it waits: it was let in by a process of an older
-- version, say, or Redis has lost its turn. One that was let in before is where it was. Returns `waits`, `taken` or `ended`.
if redis.call('HGET', record, 'state') == 'done' then return 'ended' end
now_ms, deadline_ms, limit = tonumber(now_ms), tonumber(deadline_ms), tonumber(limit)
local until_ms = deadline_ms + TURN_MARGIN_MS
local waits = line_enter(base, line, call_id, job_id, limit, deadline_ms, now_ms, until_ms, queue, place, message)
return waits and 'waits' or 'taken'

-- script: keep(records...; base, claims(token, call_id, line, deadline_ms, ends_ms)...)
-- Workers are at calls whose turns Redis may have lost, with their records, which are there again: the calls have them again.
-- ends_ms: until when the attempt may be at work.
for i, claim in ipairs(claims) do
  local is_held = redis.call('HGET', records[i], 'token') == claim.token
  if is_held and not turn_has(base, claim.line, claim.call_id) then
    redis.call('SET', base .. 'turn-of:' .. claim.call_id, '0 ' .. claim.line)
    line_keep(base .. 'turn-of:' .. claim.call_id, claim.deadline_ms)
    turn_give(base .. 'turns:' .. claim.line, claim.call_id, claim.deadline_ms + TURN_MARGIN_MS)
    redis.call('HSET', records[i], 'turn', claim.ends_ms, 'v', TURNS_SINCE)
  end
end
return 1

-- script: leave(record; base, call_id)
-- A call is surely in no queue, and at no module.
local _, line = turn_line(base, call_id)
if line then turn_end(base, call_id, line) end
return 1

-- script: sweep(lines, outbox; base, now_ms, most, again_ms)
-- Passes on the turns of lines whose time has come, and answers with 1 if there are more, and the messages that another broker
-- is to have: whoever publishes one removes it then. most: how many lines, how many messages of them, and how many for another
-- broker, at most. again_ms: until others publish it.
now_ms, most = tonumber(now_ms), tonumber(most)
local due = redis.call('ZRANGEBYSCORE', lines, '-inf', now_ms, 'LIMIT', 0, most)
local left = most
for _, line in ipairs(due) do
  if left == 0 then break end
  local turns = line_keys(base, line)
  turns_prune(base, line, now_ms)
  for _, call_id in ipairs(redis.call('ZRANGE', turns, 0, LOOKED_AT_ONCE)) do
    local found = redis.call('HMGET', base .. 'call:' .. call_id, 'state', 'turn', 'log', 'accepted')
    local _, of = turn_line(base, call_id)
    if found[1] == 'done' and of == line then
      turn_over(base, call_id, found[3] or '', '', found[2], found[4])
    elseif found[1] == 'done' then
      redis.call('ZREM', turns, call_id)
    end
  end
  left = left - line_pass(base, line, left, now_ms)
end
local messages = redis.call('ZRANGEBYSCORE', outbox, '-inf', now_ms, 'LIMIT', 0, most)
for _, one in ipairs(messages) do redis.call('ZADD', outbox, 'XX', now_ms + again_ms, one) end
return {(left == 0 or #due == most or #messages == most) and 1 or 0, unpack(messages)}
