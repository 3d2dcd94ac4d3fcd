-- Writes a result, unless a success stands there already.
-- announcement: '' for none, '=' for the value itself.
-- keys: result
-- args: channel, value, seconds, announcement

if redis.call('GETRANGE', result, 0, 19) == '{"status": "SUCCESS"' then return 0 end
redis.call('SET', result, value, 'EX', seconds)
if announcement == '=' then
  redis.call('PUBLISH', channel, value)
elseif announcement ~= '' then
  redis.call('PUBLISH', channel, announcement)
end
return 1
