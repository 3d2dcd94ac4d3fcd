"""What happens at once inside Redis with jobs.

A job is a hash: `spec` (sealed JSON), `at` (its `Place`, sealed JSON: a change names the one that it follows, so of two who move a
job one succeeds), `told` (sealed JSON: what its polls take from its start's result) and `end` (JSON, once it is over; with
`end_signature`, where the fleet signs); `sent`, of one whose call is under way: when that was last confirmed to be in its queue;
`unread`: since when nobody could read it; `workflow`: what tells the user's workflows apart; `stopped`: the job of that workflow that has
failed: only its own end as cancelled can follow, and whoever claims it next writes that. Its id is in `jobs_due` until then, by when (ms) somebody should look at it, and in its
user's set by when (ms) it was made; after that in the user's set of ended ones, and in that of all. When a job
is due is the fleet's time, as are those of its news; other times are the server's.
"""

from toolfleet_tasks.lua.clock import FLEET_TIME
from toolfleet_tasks.lua.script import Script
from toolfleet_tasks.wakeups.scripts import WAKES

MOST_ENDED = 1_000
"""Jobs that have ended, of a user or of all, that can be listed. Of a user, no others are kept."""

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

CREATE = Script(
    _NOW
    + """
local found = redis.call('HMGET', KEYS[1], 'spec', 'at', 'told', 'end', 'end_signature')
if found[1] then return {'exists', unpack(found)} end
local limit = tonumber(ARGV[5])
if redis.call('ZCARD', KEYS[3]) >= limit then
  -- What is due nowhere is no job any more: somebody has damaged its record, or Redis has lost it.
  for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    if not redis.call('ZSCORE', KEYS[2], id) then redis.call('ZREM', KEYS[3], id) end
  end
  local count = redis.call('ZCARD', KEYS[3])
  if count >= limit then return {'full', tostring(count)} end
end
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('HSET', KEYS[1], 'spec', ARGV[2], 'at', ARGV[3])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'workflow', ARGV[6]) end
return {'made'}
"""
)
"""Make a job, unless its user has too many. KEYS: job, the due ones, the user's. ARGV: id, spec, at, due (ms), how many are allowed, its
workflow's mark or ''.

Returns `made`; `exists` with the fields of the one that has this id; or `full` with how many there are.
"""

_VIEW = """
local function view(id, with_result)
  local found = redis.call('HMGET', ARGV[1] .. id, 'spec', 'at', 'told', 'sent', 'stopped')
  if not found[1] or not found[2] then return false end
  local state, stored = '', ''
  local step = string.match(found[2], '"state":"[sp][to][al][rl]t?ing".*"step":(%d+)')
  if step then
    local call_id = string.match(found[2], '"call_id":"([^"]+)"') or id .. '.' .. step
    local call = redis.pcall('HMGET', ARGV[2] .. call_id, 'state', 'begun')
    if not call.err then
      state = call[1] or (call[2] and 'begun') or ''
      if state == 'done' and with_result then
        stored = redis.call('HGET', ARGV[2] .. call_id, 'result') or redis.pcall('GET', ARGV[3] .. call_id) or ''
        if type(stored) ~= 'string' then stored = '' end
      end
    end
  end
  return {id, found[1], found[2], found[3] or '', state, stored, found[4] or '', found[5] or ''}
end
"""

LOOK = Script(
    _NOW
    + _VIEW
    + """
return {now, view(ARGV[4], true)}
"""
)
"""A job, and what its call came to. ARGV: what the names of jobs, of calls and of results begin with, id.

Returns the server's time (ms), then id, spec, at, told, `done`, `begun` or '' for the call, what is stored of it, when it was confirmed
to be in its queue (ms, or ''), and which job has stopped this one (or ''); or nothing.
"""

CLAIM = Script(
    _NOW
    + _VIEW
    + """
local answer = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[6], 'LIMIT', 0, ARGV[4])) do
  local found = view(id)
  if found then
    redis.call('ZADD', KEYS[1], ARGV[6] + ARGV[5], id)
    answer[#answer + 1] = found
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
return answer
"""
)
"""Take jobs that are due; nobody else gets them before the lease is over. KEYS: the due ones. ARGV: as above three, how many, lease (ms),
the fleet's time (ms).

Returns the server's time (ms) and, the longest due first, each as `LOOK` has it, but without what is stored of calls: a hundred results
could be more than Redis sends in a second. An id without a job is forgotten.
"""

MOVE = Script(
    _NOW
    + FLEET_TIME
    + WAKES
    + """
local at = redis.call('HGET', KEYS[1], 'at')
if at ~= ARGV[2] then return at == ARGV[3] and 1 or 0 end -- sent again, when its answer was lost
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end -- taken out of the way
if ARGV[13] ~= '1' and redis.call('HEXISTS', KEYS[1], 'stopped') == 1 then return 0 end
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1]) end
for i = 15, #ARGV, 4 do
  local kind, id, body = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'completion' then
    completion_put(ARGV[i + 3], id, body, tonumber(ARGV[10]))
  else
    wake_put(ARGV[i + 3], KEYS[6], id, math.floor(fleet_time(KEYS[7]) / 1000), kind, body)
  end
end
if ARGV[3] ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'at', ARGV[3])
  redis.call('HDEL', KEYS[1], 'sent', 'unread')
end
if ARGV[11] == '1' then redis.call('HSET', KEYS[1], 'sent', now) end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'told', ARGV[5]) end
if ARGV[6] == '' then return 1 end
redis.call('HSET', KEYS[1], 'spec', ARGV[7], 'end', ARGV[6])
if ARGV[12] ~= '' then redis.call('HSET', KEYS[1], 'end_signature', ARGV[12]) end
redis.call('HDEL', KEYS[1], 'told', 'stopped')
redis.call('EXPIRE', KEYS[1], ARGV[8])
local made = redis.call('ZSCORE', KEYS[3], ARGV[1]) or now
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
for i, score in ipairs({made, now}) do
  redis.call('ZADD', KEYS[3 + i], score, ARGV[1])
  redis.call('EXPIRE', KEYS[3 + i], ARGV[8])
end
local names = string.sub(KEYS[1], 1, -#ARGV[1] - 1)
local workflow = ARGV[14] == '1' and redis.call('HGET', KEYS[1], 'workflow')
for _, id in ipairs(workflow and redis.call('ZRANGE', KEYS[3], 0, -1) or {}) do
  if redis.call('HGET', names .. id, 'workflow') == workflow and redis.call('ZSCORE', KEYS[2], id) then
    redis.call('HSETNX', names .. id, 'stopped', ARGV[1])
    redis.call('ZADD', KEYS[2], math.floor(fleet_time(KEYS[7]) / 1000), id)
  end
end
local over = math.min(redis.call('ZCARD', KEYS[4]) - ARGV[9], 500)
for _, id in ipairs(over > 0 and redis.call('ZRANGE', KEYS[4], 0, over - 1) or {}) do
  redis.call('UNLINK', names .. id)
  redis.call('ZREM', KEYS[4], id)
  redis.call('ZREM', KEYS[5], id)
end
redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -ARGV[9] - 1)
return 1
"""
)
"""Change a job that is where it is thought to be, and write what its end causes, all or nothing.

KEYS: job, the due ones, its user's, the user's ended ones, all ended ones, the wakes that are due, the fleet's clock. ARGV: id, the old place, the
new one, when to look again (ms; '': as it is), told ('': as it is); the end ('': it is not over), the spec that is kept then, for
how many seconds, how many ended ones are listed, and of its user's kept; for how many seconds completions are kept; '1' if its call is
now known to be in its queue; the end's signature or ''; '1' if it is cancelled; '1' if the others of its workflow are not to go on;
then for each piece of news its kind (`completion` for one without HTTP), id, body, and the name
of its hash or stream.

Returns 1, or 0 with nothing changed: others have moved it, or one of its workflow has failed.
"""

PUT_OFF = Script(
    _NOW
    + """
if redis.call('HGET', KEYS[1], 'at') ~= ARGV[2] or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end
redis.call('HSETNX', KEYS[1], 'unread', now)
if now - (tonumber(redis.call('HGET', KEYS[1], 'unread')) or now) < ARGV[4] * 1000 then
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
)
"""A job cannot be read here: another worker may, with another key or of a newer version. KEYS: job, the due ones. ARGV: id, its place
as it was read, when to look again (ms), for how many seconds nobody may have read it before nobody looks any more.

Returns 1 if nobody does; it is kept for as long once more.
"""
