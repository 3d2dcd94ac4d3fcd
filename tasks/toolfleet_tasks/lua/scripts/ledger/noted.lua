-- `noted(log)`: tells the module's breaker how the attempt has ended, and returns the log with that in it.
-- include: breaker/note

local function noted(log)
  if away ~= '' then
    breaker_note(breaker, now, tonumber(away), tonumber(failures), tonumber(longest_ms), outcome)
  elseif outcome ~= '' then
    breaker_spare(breaker)
  end
  return outcome ~= '' and log .. attempt .. ' ' .. outcome .. ';' or log
end
