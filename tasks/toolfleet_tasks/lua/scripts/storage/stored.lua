-- Counts stored results, and calls that wait for approvals (`approvals/usage`).
-- `stored_key(share)`: where the results of that caller stand, nil for what is no key of a caller's limit.
-- `stored_add(key, id, size, now, keep_ms)`, `stored_forget(key, member)`, and `stored_bytes(key, now)`: the sum, without the
-- expired.

local function stored_key(caller_limit)
  local at, _, who = string.find(caller_limit, 'share:%a+:(%x+)$')
  return at and string.sub(caller_limit, 1, at - 1) .. 'stored:' .. who
end

local function stored_forget(key, member)
  if redis.call('ZREM', key, member) == 0 then return end
  local size = tonumber(string.match(member, '%d+$'))
  if redis.call('DECRBY', key .. ':bytes', size) <= 0 then redis.call('DEL', key .. ':bytes') end
end

local function stored_bytes(key, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 100)) do stored_forget(key, member) end
  return tonumber(redis.call('GET', key .. ':bytes') or 0)
end

local function stored_add(key, id, size, now, keep_ms)
  if redis.call('ZADD', key, now + keep_ms, id .. ' ' .. size) == 0 then return end
  redis.call('INCRBY', key .. ':bytes', size)
  if redis.call('PTTL', key) < keep_ms then
    redis.call('PEXPIRE', key, math.ceil(keep_ms))
    redis.call('PEXPIRE', key .. ':bytes', math.ceil(keep_ms))
  end
  stored_bytes(key, now)
end
