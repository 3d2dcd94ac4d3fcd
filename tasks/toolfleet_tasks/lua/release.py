"""The scripts that release a claim in the ledger, or its place: of a call that was not begun, or that nobody is at any more."""

from toolfleet_tasks.lua.breaker import BREAKER

UNCLAIM = f"""{BREAKER}
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'as') ~= 'go' then -- an earlier attempt is still open, and must stay so
  redis.call('HSET', KEYS[1], 'lease', 0)
  return 1
end
redis.call('HINCRBY', KEYS[1], 'begun', -1)
redis.call('HDEL', KEYS[1], 'token', 'lease', 'as')
if KEYS[2] ~= KEYS[1] then redis.call('ZREM', KEYS[2], ARGV[2]) end
breaker_spare(KEYS[3])
return 1
"""
"""Give a claim back of which nothing was made: nothing was sent. KEYS: record, its module's running calls, its breaker.
ARGV: token, call id.
"""

LET_GO = """
local holder = redis.call('HGET', KEYS[1], 'token')
if holder == ARGV[1] then redis.call('HSET', KEYS[1], 'lease', 0) end
if KEYS[2] ~= KEYS[1] and (not holder or holder == ARGV[1]) then redis.call('ZREM', KEYS[2], ARGV[2]) end
return 1
"""
"""End a lease at once, for nobody is at the call any more, and nobody knows how far it got.

KEYS: record, its module's running calls. ARGV: token, call id.
"""

NOTE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'known', ARGV[3], 'known_line', ARGV[4])
if KEYS[2] ~= KEYS[1] then redis.call('ZREM', KEYS[2], ARGV[2]) end
return 1
"""
"""Keep what a worker knows of a call whose attempt is over, and that it has not ended yet: it asks the module, whose place it leaves.

KEYS: record, its module's running calls. ARGV: token, call id, Celery's value, the end of the audit line.
"""
