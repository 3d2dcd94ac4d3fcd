-- Forgets letters. Returns the ids of those that were there.
-- keys: letters, order, size?
-- args: ids...
-- include: dead_letters/forget

local dropped = {}
for _, id in ipairs(ids) do
  if forget(letters, order, size, id) == 1 then dropped[#dropped + 1] = id end
end
return dropped
