-- `streams_of(all_key, users_key)`: the streams of a conversation's users behind the one that all users had before,
-- and the id of the last user that was added.

local function streams_of(all_key, users_key)
  local streams, known, last = {all_key}, {}, '0-0'
  for _, one in ipairs(redis.call('XRANGE', users_key, '-', '+')) do
    last = one[1]
    local key = all_key .. ':' .. one[2][2]
    if not known[key] then
      known[key] = true
      streams[#streams + 1] = key
    end
  end
  return streams, last
end
