-- `noted(log)`: tells the module's breaker how the attempt has ended, and returns the log with that in it.
-- include: now, ledger/logged
-- lazily: breaker/note(breaker_note, breaker_spare)

local function noted(log)
  if away ~= '' then
    local is_news = away ~= '0' or redis.call('EXISTS', breaker) == 1 -- nearly always there is nothing to forgive
    if is_news then breaker_note(breaker, now, tonumber(away), tonumber(failures), tonumber(longest_ms), outcome) end
  elseif outcome ~= '' then
    breaker_spare(breaker)
  end
  return logged(log)
end
