-- `decided(judged, let_in, undo)`: lets a call in if nothing stands against it; what fails midway is taken back.

local function decided(judged, let_in, undo)
  local is_done, answer = pcall(judged)
  if is_done and not answer then
    is_done, answer = pcall(let_in)
    if not is_done then
      redis.pcall('ZREM', caller_limit, call_id)
      if digest then redis.pcall('DEL', intent) end
      if undo then undo() end
    end
  end
  if is_done then return answer end
  local reason = type(answer) == 'table' and answer.err or tostring(answer)
  return {'failed', (string.gsub(reason, '^@user_script: ?%d+: %-?', ''))}
end
