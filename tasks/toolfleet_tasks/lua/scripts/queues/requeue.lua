-- Puts messages back to where they came from, to be the next ones, the first tag's first.
-- begun: '1' if they may have been begun, else '0': then a claim that was made as one was taken goes with it.
-- record_prefix: before calls' ids.
-- keys: unacked, unacked_index
-- args: queue_prefix, notify_prefix, begun, record_prefix, tags...
-- include: queues/requeue_one, ledger/forgotten

local count = 0
for i = #tags, 1, -1 do
  local held = begun == '0' and redis.call('HGET', unacked, tags[i])
  local call_id = held and string.match(held, '^%[{"begin":"%d+ %l+ ([^"\\]+)",')
  if call_id then forget(record_prefix .. call_id, tags[i]) end
  count = count + (requeue(tags[i], begun == '1'))
end
return count
