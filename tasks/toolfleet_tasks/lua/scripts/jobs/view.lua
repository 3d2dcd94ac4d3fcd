-- `view(id, with_result)`: id, spec, at, told, `done`, `begun` or '' for the job's call, what is stored of it, when it was
-- confirmed to be in its queue (ms, or ''), and which job has stopped this one (or ''); false where there is no such job.

local function view(id, with_result)
  local found = redis.call('HMGET', job_prefix .. id, 'spec', 'at', 'told', 'sent', 'stopped')
  if not found[1] or not found[2] then return false end
  local state, stored = '', ''
  local step = string.match(found[2], '"state":"[sp][to][al][rl]t?ing".*"step":(%d+)')
  if step then
    local call_id = string.match(found[2], '"call_id":"([^"]+)"') or id .. '.' .. step
    local call = redis.pcall('HMGET', call_prefix .. call_id, 'state', 'begun')
    if not call.err then
      state = call[1] or (call[2] and 'begun') or ''
      if state == 'done' and with_result then
        stored = redis.call('HGET', call_prefix .. call_id, 'result') or redis.pcall('GET', result_prefix .. call_id) or ''
        if type(stored) ~= 'string' then stored = '' end
      end
    end
  end
  return {id, found[1], found[2], found[3] or '', state, stored, found[4] or '', found[5] or ''}
end
