-- Ends a replay. A letter is dropped if its replay succeeded, or is a dead letter itself and so stands for it.
-- replay_id: the replay's own call, '' if it was not published. succeeded: '1' or '0'.
-- keys: dead, dead_order
-- args: call_id, replay_id, succeeded

if succeeded == '1' or (replay_id ~= '' and redis.call('HEXISTS', dead, replay_id) == 1) then
  redis.call('ZREM', dead_order, call_id)
  redis.call('HDEL', dead, call_id, call_id .. '/replay')
  return 1
end
redis.call('HDEL', dead, call_id .. '/replay')
return 0
