-- Approvals: calls that wait for people, each with a record beside the ledger's. Of the arguments:
-- request: what people see of the call; call: it, as it is published; both sealed.
-- summary: the request without large arguments, sealed; words: what those who may see it have, as `list` compares them.
-- waiting: the calls that wait for something, by when (ms) somebody has to look at them.
-- stored: where its user's share is counted, of which it takes its part.
-- fleet_ms: by the fleet's clock. seconds: how long record and approval live from now on. channel: where others hear of it.
-- events: the stream of what happens to approvals, which the record names until people have decided.
-- include: admission, clock, ledger, storage
-- lazily: admission(joins, run_id), ledger(trail_added)

-- Notes what has happened to an approval where all that may see it hear of it.
local function approval_event(events, channel, id, kind)
  redis.call('XADD', events, 'MAXLEN', '~', APPROVAL_EVENTS_KEPT, '*', 'id', id, 'kind', kind)
  redis.call('EXPIRE', events, APPROVAL_EVENTS_SECONDS)
  redis.call('PUBLISH', channel, id)
end

-- Where the call is in the ledger: '' while it waits, `published`, `begun` or `done`.
local function approval_place(record)
  local ledger = redis.call('HMGET', record, 'state', 'begun', 'may_begin')
  return ledger[1] == 'done' and 'done' or ledger[3] and 'published' or tonumber(ledger[2] or 0) > 0 and 'begun' or ''
end

-- What is stored of a waiting approval counts in its user's share, beside the stored results, until it expires at the latest.
local function usage_remove(approval)
  local counted = redis.call('HMGET', approval, 'stored_key', 'stored_member')
  if not counted[1] then return end
  stored_forget(counted[1], counted[2])
  redis.call('HDEL', approval, 'stored_key', 'stored_member')
end

local function usage_add(approval, stored, id, bytes, until_ms)
  usage_remove(approval)
  id, bytes = 'approval:' .. id, math.max(bytes, WAITING_COUNTS_BYTES)
  stored_add(stored, id, bytes, now, math.max(until_ms - now, 1000))
  redis.call('HSET', approval, 'stored_key', stored, 'stored_member', id .. ' ' .. bytes)
end

-- script: request(record, intent, approval, waiting, events, stored;
--   call_id, deadline, intention, intent_seconds, request, call, expires_ms, seconds, effect, most, channel, trace,
--   summary, words, stored_bytes_most)
-- Has a call wait for its approval, in the ledger and beside it, unless it joins another one. It is in no queue, and not begun.
-- intent: the idempotency key if it has one, as `admission` has it, with `intention` and `intent_seconds`; else the record.
-- most: how many may wait. deadline: until when (s) the call waits. stored_bytes_most: how much of the share others may have.
-- trace: where the call was made in a trace, as lines; "" in none. Nobody signs it, and it decides nothing.
if redis.call('HGET', approval, 'state') == 'waiting' then return {'waiting'} end -- the answer was lost
local joined = digest and joins()
if joined then return joined end
if redis.call('EXISTS', record) == 1 or redis.call('EXISTS', approval) == 1 then return {'ended', call_id} end
local count = redis.call('ZCARD', waiting)
if count >= tonumber(most) then return {'crowd', count} end
local bytes = stored_bytes(stored, now)
if bytes > tonumber(stored_bytes_most) then return {'stored', bytes} end
redis.call('HSET', record, 'token', 'approval', 'lease', expires_ms, 'begun', 0, 'effect', effect, 'as', 'busy', 'granted',
  'approval', 'v', APPROVALS_SINCE, 'approval_events', events, 'approval_channel', channel)
redis.call('HSET', approval, 'state', 'waiting', 'revision', 1, 'request', request, 'call', call, 'expires_ms', expires_ms,
  'summary', summary, 'summarised', 1, 'words', words)
usage_add(approval, stored, call_id, #request + #call + #summary, tonumber(expires_ms))
if trace ~= '' then redis.call('HSET', approval, 'trace', trace) end
redis.call('EXPIRE', record, seconds)
redis.call('EXPIRE', approval, seconds)
redis.call('ZADD', waiting, expires_ms, call_id)
if digest then intend() end
approval_event(events, channel, call_id, 'asked')
return {'waiting'}

-- script: decide(approval, record, waiting, events, stored;
--   call_id, revision, state, votes, journal, request, call, approved, fleet_ms, seconds, channel, kinds, summary, words)
-- Takes what somebody has decided of a call that waits, if nobody has decided anything since it was read. It may be edited.
-- revision: the one that was read. state: what it is from now on: `waiting` (others have to decide, too), `approved`,
--   `rejected` or `expired`. votes, journal: all of them.
-- approved: what the ledger keeps for the worker that begins the call, sealed; '' unless it is approved now.
-- fleet_ms: by the clock of whoever decides. kinds: what has happened by it, in words with a space between, for `events`.
local found = redis.call('HMGET', approval, 'state', 'revision', 'expires_ms')
if not found[1] then return 'unknown' end
local ledger = redis.call('HMGET', record, 'state', 'token')
if found[1] ~= 'waiting' then return found[1] end
if ledger[1] == 'done' then return 'ended' end
if found[2] ~= revision then return 'raced' end
-- Either clock may have been set back.
local is_late = math.max(now, tonumber(fleet_ms)) >= tonumber(found[3])
if is_late ~= (state == 'expired') then return is_late and 'expired' or 'waiting' end
if state == 'approved' and ledger[2] ~= 'approval' then return 'lost' end -- Redis has lost the call's record
redis.call('HSET', approval, 'state', state, 'revision', revision + 1, 'votes', votes, 'journal', journal, 'request', request,
  'call', call, 'summary', summary, 'summarised', revision + 1, 'words', words)
redis.call('EXPIRE', approval, seconds)
if state == 'approved' then
  redis.call('HSET', record, 'approved', approved, 'may_begin', 1)
  redis.call('HDEL', record, 'token', 'lease', 'as', 'granted')
  trail_added('approved', revision, now)
  redis.call('EXPIRE', record, seconds)
end
if state == 'waiting' then
  usage_add(approval, stored, call_id, #request + #call + #summary, tonumber(found[3]))
else
  usage_remove(approval)
  redis.call('ZADD', waiting, fleet_ms, call_id) -- there is something to do about it
  redis.call('HDEL', record, 'approval_events', 'approval_channel')
end
for kind in string.gmatch(kinds, '%S+') do approval_event(events, channel, call_id, kind) end
return 'taken'

-- script: read(approval, record)
-- One approval as it stands, with where its call is in the ledger.
local found = redis.call('HMGET', approval, 'state', 'revision', 'request', 'call', 'expires_ms', 'votes', 'journal',
  'trace', 'trimmed')
if not found[1] then return {} end
found[10] = approval_place(record)
for i = 1, 10 do found[i] = found[i] or '' end
return found

-- script: list(index; start, descending, most, skip, want, approvals, calls, conversation, viewer..., ids...)
-- Lists approvals by their summaries, which have no large arguments: those of an index, or of `ids`, that a viewer may see.
-- start: the first rank; descending: '1' for the last first. most: how many are looked at. skip: how many of those that may be
--   seen are left out. want: how many are returned.
-- approvals, calls: what stands before an id in the names of keys. viewer: words, one of which must be among those of the approval;
--   none: all are seen. conversation: such a word, '' for any.
-- Returns the next rank, -1 at the end; how many are still to be left out; the ids and revisions of those without a summary of
-- their revision, as older processes leave them, at most 20; and what was found before the first of these.
start, most, skip, want = tonumber(start), tonumber(most), tonumber(skip), tonumber(want)

local function is_seen(words)
  local function has(word) return string.find(words, ' ' .. word .. ' ', 1, true) end
  if conversation ~= '' and not has(conversation) then return false end
  for _, word in ipairs(viewer) do
    if has(word) then return true end
  end
  return #viewer == 0
end

if #ids == 0 then ids = redis.call(descending == '1' and 'ZREVRANGE' or 'ZRANGE', index, start, start + most - 1) end
local next_rank, stale, found = #ids == most and start + most or -1, {}, {}
for i, id in ipairs(ids) do
  local facts = redis.call('HMGET', approvals .. id, 'revision', 'summarised', 'words')
  if facts[1] and facts[1] ~= facts[2] then
    if #stale == 0 then next_rank = start + i - 1 end
    stale[#stale + 1] = {id, facts[1]}
    if #stale == 20 then break end
  elseif facts[1] and #stale == 0 and is_seen(facts[3]) then
    if skip > 0 then
      skip = skip - 1
    else
      local one = redis.call('HMGET', approvals .. id, 'state', 'revision', 'summary', 'votes', 'journal')
      for k = 1, 5 do one[k] = one[k] or '' end
      one[6], one[7] = approval_place(calls .. id), id
      found[#found + 1] = one
      if #found == want then
        next_rank = start + i
        break
      end
    end
  end
end
return {next_rank, skip, stale, found}

-- script: summarise(approval; revision, summary, words)
-- Adds its summary to an approval that an older process has written, or decided about, unless it was decided about since.
if redis.call('HGET', approval, 'revision') ~= revision then return 0 end
redis.call('HSET', approval, 'summary', summary, 'summarised', revision, 'words', words)
return 1

-- script: due(waiting; fleet_ms, lease_ms, count)
-- The calls about whose approval something is to be done; nobody else gets them before the lease is over.
local due = redis.call('ZRANGEBYSCORE', waiting, '-inf', fleet_ms, 'LIMIT', 0, count)
for _, id in ipairs(due) do redis.call('ZADD', waiting, fleet_ms + lease_ms, id) end
return due

-- script: settle(waiting, settled, approval; call_id, fleet_ms, kept, seconds, request, call)
-- Nothing more is to be done about a call's approval: it stands among the last that were settled, and counts in no share.
-- settled: these, by when (ms). kept: how many of them.
-- request, call: both without large arguments, which nothing needs any more; '' where they stay as they are.
redis.call('ZREM', waiting, call_id)
redis.call('ZADD', settled, fleet_ms, call_id)
redis.call('ZREMRANGEBYRANK', settled, 0, -kept - 1)
redis.call('EXPIRE', settled, seconds)
usage_remove(approval)
if call ~= '' and redis.call('EXISTS', approval) == 1 then
  redis.call('HSET', approval, 'request', request, 'call', call, 'trimmed', 1)
end
return 1
