-- `logged(log)`: the call's log with how this attempt has ended.

local function logged(log)
  return outcome ~= '' and log .. attempt .. ' ' .. outcome .. ';' or log
end
