-- `outcome_noted(job_key, outcome)`: keeps with a job what became of a wake-up of it, as long as the job is kept; the latest of
-- them.
-- `outcome`: a line of JSON. Sent again, it is kept once. A key that is no job's keeps nothing.
-- constants: OUTCOMES_BYTES

local function outcome_noted(job_key, outcome)
  if outcome == '' or redis.pcall('HEXISTS', job_key, 'spec') ~= 1 then return end
  local kept = redis.call('HGET', job_key, 'outcomes') or ''
  if string.find(kept, outcome, 1, true) then return end
  kept = kept .. outcome .. '\n'
  while #kept > OUTCOMES_BYTES do kept = string.gsub(kept, '^[^\n]*\n', '', 1) end
  redis.call('HSET', job_key, 'outcomes', kept)
end
