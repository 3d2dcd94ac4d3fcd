-- What live workers find of modules' processes, as they have noted it.
-- seconds: for how long a note counts.
-- keys: counts
-- args: seconds

local now, found = tonumber(redis.call('TIME')[1]), {}
for _, text in ipairs(redis.call('HVALS', counts)) do
  local at, note = string.match(text, '^(%d+) (.*)$')
  if at and math.abs(now - tonumber(at)) <= tonumber(seconds) then found[#found + 1] = note end
end
return found
