-- `admitted()`: lets a call in if nothing stands against it.
-- include: overload/caller_limit, admission/publish, admission/decided

local function admitted()
  local function judged()
    return stands_against() or is_full()
  end

  local function let_in()
    if caller_take(caller_limit, call_id, deadline, bound, tonumber(keep_ms)) == 0 then return {'share', bound} end
    return publish()
  end

  return decided(judged, let_in)
end
