-- Lets calls in, and puts their messages into their one queue, where nothing stands against any of them, as `admission/admit` does
-- at once with one. Else nothing is changed, and each is to be sent alone.
-- until_s: the deadline, in whole seconds. The others as `admission/admit` has them.
-- keys: queue, notify_key, breaker, queue_states, known(record, caller_limit, stored)...
-- args: limit, bound, backlog_bytes, calls(call_id, until_s, message)...
-- constants: BYTES_FROM_MESSAGES, CALLER_LIMIT_KEPT_SECONDS

local questions, callers, messages, longest = {breaker, queue_states}, {}, {}, 0
for i, call in ipairs(calls) do
  local of = known[i]
  local members = callers[of.caller_limit]
  if not members then
    members = {}
    callers[of.caller_limit] = members
    questions[#questions + 1] = of.stored .. ':bytes'
  end
  questions[#questions + 1] = of.record
  members[#members + 1] = call.until_s
  members[#members + 1] = call.call_id
  messages[i] = call.message
  longest = math.max(longest, #call.message)
end
if redis.call('EXISTS', unpack(questions)) > 0 then return false end
if limit ~= '0' then
  local length = redis.call('LLEN', queue) + #calls
  if length > tonumber(limit) then return false end
  if length > BYTES_FROM_MESSAGES and longest * limit > tonumber(backlog_bytes) then return false end
end
local most, counts = tonumber(bound), {}
for caller_limit, members in pairs(callers) do
  counts[caller_limit] = redis.call('ZCARD', caller_limit)
  if counts[caller_limit] + #members / 2 > most then return false end
end
-- A message comes last, so that what fails has let nobody in: what is counted before it is counted again when it is sent alone.
for caller_limit, members in pairs(callers) do
  redis.call('ZADD', caller_limit, unpack(members))
  if counts[caller_limit] == 0 then redis.call('PEXPIRE', caller_limit, CALLER_LIMIT_KEPT_SECONDS * 1000) end
end
if redis.call('EXISTS', notify_key) == 0 then redis.call('LPUSH', notify_key, '1') end
redis.call('LPUSH', queue, unpack(messages))
return 0
