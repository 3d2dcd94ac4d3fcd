-- The queues that hold something, with their oldest message.
-- most_bytes: of the largest message that is brought; one behind it is taken instead, which is hardly younger.
-- most_reads: how many messages are looked at. They are taken from the end of the list.
-- keys: queues...
-- args: most_bytes, most_reads

local found, reads = {}, tonumber(most_reads)
for i, queue in ipairs(queues) do
  local length = redis.pcall('LLEN', queue)
  if type(length) == 'number' and length > 0 then
    local oldest = ''
    for at = 1, math.min(length, 3) do
      if reads == 0 then break end
      reads = reads - 1
      local message = redis.call('LINDEX', queue, -at)
      if #message <= tonumber(most_bytes) then
        oldest = message
        break
      end
    end
    found[#found + 1] = {i, length, oldest}
  end
end
return found
