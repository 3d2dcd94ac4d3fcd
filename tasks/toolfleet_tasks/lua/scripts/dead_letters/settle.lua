-- Ends a replay. A letter is dropped if its replay succeeded, or is a dead letter itself and so stands for it.
-- replay_id: the replay's own call, '' if it was not published. succeeded: '1' or '0'.
-- keys: dead, dead_order
-- args: call_id, replay_id, succeeded
-- include: dead_letters/forget

if succeeded == '1' or (replay_id ~= '' and redis.call('HEXISTS', dead, replay_id) == 1) then
  forget(dead, dead_order, nil, call_id)
  return 1
end
redis.call('HDEL', dead, call_id .. '/replay')
return 0
