"""The scripts that let calls in, and take that back: each all at once, or not at all.

Times are the server's, but for a call's deadline, which is the clock's of the agent that made it.
"""

from toolfleet_tasks.overload_scripts import BREAKER, SHARE, SLOTS, SLOTS_COUNT_SECONDS
from toolfleet_tasks.script import Script

ADMIT = Script(
    BREAKER
    + SHARE
    + SLOTS
    + """
local id, message, limit, bound, found_bound = ARGV[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), 0
local digest = ARGV[8]
local intent = digest and redis.call('GET', KEYS[6])
if intent then
  local holder, same = string.match(intent, '^(%S+) (%S+)')
  if holder ~= id then return {same == digest and 'joined' or 'conflict', holder or ''} end
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  local clock = redis.call('TIME')
  local rest = breaker_rest(KEYS[3], clock[1] * 1000 + clock[2] / 1000)
  if rest > 0 then return {'open', rest} end
end
if bound <= 0 then
  found_bound = 2 * slots_sum(KEYS[5], redis.call('TIME')[1] - """
    + str(SLOTS_COUNT_SECONDS)
    + """)
  if found_bound == 0 then found_bound = -bound end
  bound = found_bound
end
-- The push first, for it fails before anything else is written, if it fails; and it says how many there are.
local length = message ~= '' and redis.call('LPUSH', KEYS[1], message) or redis.call('LLEN', KEYS[1]) + 1
local refusal
if limit > 0 and length > limit then
  refusal = {'backlog', length - 1}
elseif share_take(KEYS[4], id, ARGV[2], bound, tonumber(ARGV[6])) == 0 then
  refusal = {'share', bound}
end
if refusal then
  if message ~= '' then redis.call('LPOP', KEYS[1]) end
  return refusal
end
if message ~= '' and redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], '1') end
if digest then redis.call('SET', KEYS[6], id .. ' ' .. digest, 'EX', ARGV[7]) end
return found_bound
"""
)
"""Let a call in, and put its message into its queue. May be sent again, with the same id, if it has no message.

KEYS: queue, bell, its module's breaker, its caller's share, its lane's slots, and the idempotency key if it has one. ARGV: call
id, its deadline (s), message ('' if it is published otherwise), how many messages may wait in the queue (0: that is judged
elsewhere), the caller's share (negative: twice the lane's slots, and so many where none are known), for how many ms its key must
live (0: as it is), with an idempotency key also the seconds that it is kept, and the digest of what the call would do.

Returns the caller's share if it was looked up, else 0; or what stands against the call: ['joined' or 'conflict', the call id that
the key stands for], ['open', ms until the breaker lets one through], ['backlog', how many wait], ['share', how many it may have].
"""

RETRACT = Script(
    SHARE
    + """
share_leave(KEYS[1], ARGV[1])
local intent = KEYS[2] and redis.call('GET', KEYS[2])
if intent and string.match(intent, '^%S+') == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 1
"""
)
"""Take back that a call was let in: it is surely in no queue. KEYS: its caller's share, its idempotency key if it has one.
ARGV: call id. May be sent again.
"""
