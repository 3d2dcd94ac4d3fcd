-- Notes how many calls a worker runs at once, in each of its lanes. Returns all notes of these lanes.
-- seconds: for how long a note counts.
-- keys: lanes...
-- args: note, seconds
-- include: overload/slots

local notes = {}
for _, key in ipairs(lanes) do
  slots_note(key, note, tonumber(seconds))
  for _, each in ipairs(redis.call('ZRANGE', key, 0, -1)) do notes[#notes + 1] = each end
end
return notes
