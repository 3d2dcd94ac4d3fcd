-- Puts messages back to where they came from, to be the next ones, the first tag's first.
-- begun: '1' if they may have been begun, else '0'.
-- keys: unacked, unacked_index
-- args: queue_prefix, notify_prefix, begun, tags...
-- include: queues/requeue_one

local count = 0
for i = #tags, 1, -1 do count = count + (requeue(tags[i], begun == '1')) end
return count
