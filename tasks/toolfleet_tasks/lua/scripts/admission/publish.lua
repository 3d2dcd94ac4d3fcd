-- `publish()`: lets the call in, and says so. The message comes last: what fails before it can be taken back, and after it nothing
-- can fail.
-- include: admission/stands_against, admission/is_full
-- lazily: admission/run_id(run_id)

local function publish()
  if digest then
    redis.call('SET', intent, call_id .. ' ' .. digest .. ' ' .. deadline .. ' ' .. run_id(), 'EX', intent_seconds)
  end
  if message ~= '' then
    if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
    redis.call('LPUSH', queue, message)
  end
  if needs_worker == '1' then return {'served', found_bound} end
  return found_bound
end
