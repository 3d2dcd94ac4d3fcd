-- `bury(dead_key, order_key, id, now, letter, kept, log)`: keeps a letter, and of all letters the `kept` latest ones.
-- `now` is in ms. `log`, which may be left out, is the ledger's log of the call's attempts: it counts more than the attempts in
-- the letter, which whoever wrote it may not have known.
-- include: dead_letters/forget

-- A letter that cannot be kept is no reason to lose the call's result: nothing in here fails.
local function bury(dead_key, order_key, id, now, letter, kept, log)
  if log and log ~= '' then letter = log .. '\n' .. letter end
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
    forget(dead_key, order_key, nil, oldest)
  end
end
