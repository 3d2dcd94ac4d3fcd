-- Which of the queues hold something.
-- keys: queues...

local holding = {}
for i, queue in ipairs(queues) do
  if redis.call('EXISTS', queue) == 1 then holding[#holding + 1] = i end
end
return holding
