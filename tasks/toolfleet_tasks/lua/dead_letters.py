"""What happens at once inside Redis with dead letters.

They are a hash, call id -> letter, and a sorted set, call id -> when it died (ms). While a letter is replayed, the hash has
a second field for it, `<call id>/replay`: until when (s) nobody else may. No call id has a slash.
"""

BURY = """
-- A letter that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function bury(dead_key, order_key, id, now, letter, kept, log)
  if log and log ~= '' then letter = log .. '\\n' .. letter end
  local noted = redis.pcall('ZADD', order_key, now, id)
  if type(noted) == 'table' then return end
  local written = redis.pcall('HSET', dead_key, id, letter)
  if type(written) == 'table' then
    redis.call('ZREM', order_key, id)
    return
  end
  local over = math.min(redis.call('ZCARD', order_key) - kept, 500) -- after a lower limit the rest goes by and by
  if over < 1 then return end
  for _, oldest in ipairs(redis.call('ZRANGE', order_key, 0, over - 1)) do
    redis.call('HDEL', dead_key, oldest, oldest .. '/replay')
    redis.call('ZREM', order_key, oldest)
  end
end
"""
"""`bury(dead_key, order_key, id, now, letter, kept, log)`: keep a letter, and of all letters the `kept` latest ones.

`now` is in ms. `log`, which may be left out, is the ledger's log of the call's attempts: it counts more than the attempts in
the letter, which whoever wrote it may not have known.
"""

BURY_ENDED = (
    BURY
    + """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
bury(KEYS[2], KEYS[3], ARGV[1], now, ARGV[2], tonumber(ARGV[3]), redis.call('HGET', KEYS[1], 'log'))
return 1
"""
)
"""Keep the letter of a call that has ended already. KEYS: record, dead letters, their order. ARGV: call id, letter, how many are kept."""

TAKE = """
local letter = redis.call('HGET', KEYS[1], ARGV[1])
if not letter then return false end
local now = tonumber(redis.call('TIME')[1])
local rest = tonumber(redis.call('HGET', KEYS[1], ARGV[1] .. '/replay') or 0) - now
if rest > 0 then return {letter, rest} end
redis.call('HSET', KEYS[1], ARGV[1] .. '/replay', now + ARGV[2])
return {letter, 0}
"""
"""Begin a replay, unless one runs. KEYS: the letters. ARGV: call id, seconds after which it surely runs no more.

Returns the letter, and for how many seconds another replay may still run: 0 if ours may. Nothing if there is no letter.
"""

SETTLE = """
if ARGV[3] == '1' or (ARGV[2] ~= '' and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1) then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. '/replay')
  return 1
end
redis.call('HDEL', KEYS[1], ARGV[1] .. '/replay')
return 0
"""
"""End a replay. KEYS: the letters, their order. ARGV: call id, the replay's own ('' if it was not published), '1' if it succeeded.

A letter is dropped if its replay succeeded, or is a dead letter itself and so stands for it. Returns 1 if it was.
"""
