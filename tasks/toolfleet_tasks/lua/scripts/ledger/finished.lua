-- `finished()`: the call's one result, whatever has happened to it.
-- include: audit
-- constants: COUNTED_FROM_BYTES
-- lazily: ledger/trail_finished(trail_finished)
-- lazily: overload/running(running_leave), ledger/noted(noted), ledger/counted(counted), ledger/ended(ended)

local FIELDS_OF_ONE_ATTEMPT = 6 -- that stay: more are there if anything else has happened to the call

local function finished()
  local found = redis.call('HMGET', record, 'token', 'closed', 'log', 'begun', 'state', 'by')
  local log = found[3] or ''
  if running ~= record and (found[1] == token or found[5] == 'done') then running_leave(running, call_id) end
  if found[5] == 'done' then return found[6] == token and 1 or 0 end
  -- Without a record Redis has lost it, and nobody else has the call.
  if found[1] ~= token and found[2] ~= token and (found[1] or found[4]) then return 0 end
  if found[2] == token and found[1] then return 0 end
  if found[2] ~= token then log = noted(log) end
  redis.call('HSET', record, 'state', 'done', 'by', token, 'begun', attempt, 'log', log)
  redis.call('HDEL', record, 'token', 'lease', 'as', 'last', 'last_signature', 'known', 'known_line', 'accepted', 'ask_at',
    'parked', 'granted', 'question', 'message', 'answered')
  if redis.call('HLEN', record) > FIELDS_OF_ONE_ATTEMPT then
    line = string.sub(line, 1, -2) .. trail_finished(found[2] ~= token) .. '}'
  end
  if value == '' then
    redis.call('HSET', record, 'result', announcement)
  else
    redis.call('SET', result, value, 'EX', result_seconds)
    redis.call('PUBLISH', result, announcement == '' and value or announcement)
  end
  local size = #value + (value == '' and #announcement or 0)
  if size >= COUNTED_FROM_BYTES then counted(size) end
  if effect_state == 'none' or letter ~= '' then
    ended(record_seconds, effect_state == 'none', letter, tonumber(letters_kept), log)
  else
    redis.call('EXPIRE', record, record_seconds)
    if caller_limit ~= record then redis.call('ZREM', caller_limit, call_id) end
  end
  return audit(audit_stream, lines_kept, line) and 1 or 2
end
