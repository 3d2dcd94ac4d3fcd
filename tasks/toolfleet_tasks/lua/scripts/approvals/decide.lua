-- Takes what somebody has decided of a call that waits, if nobody has decided anything since it was read.
-- revision: the one that was read. state: what it is from now on: `waiting` (others have to decide, too), `approved`,
--   `rejected` or `expired`. votes, journal: all of them.
-- request, call, summary, words, stored: as `approvals/request` has them, for the call may have been edited.
-- approved: what the ledger keeps for the worker that begins the call, sealed; '' unless it is approved now.
-- fleet_ms: by the clock of whoever decides. seconds: how long record and approval live from now on.
-- kinds: what has happened by it, in words with a space between, for `events`.
-- keys: approval, record, waiting, events, stored
-- args: call_id, revision, state, votes, journal, request, call, approved, fleet_ms, seconds, channel, kinds
-- args: summary, words
-- include: now, approvals/event, approvals/usage
-- lazily: ledger/trail(trail_added)

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
