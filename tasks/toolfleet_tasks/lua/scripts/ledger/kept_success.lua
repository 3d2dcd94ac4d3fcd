-- `kept_success(key)`: the call's result, if it is still there, else ''. When its text was dropped after it had been had,
-- Celery may have written that it has revoked the call.

local function kept_success(key)
  local value = redis.call('GET', key)
  return value and string.sub(value, 1, 20) == '{"status": "SUCCESS"' and value or ''
end
