-- Lists approvals by their summaries, which have no large arguments: those of an index, or of `ids`, that a viewer may see.
-- start: the first rank; descending: '1' for the last first. most: how many are looked at. skip: how many of those that may be
--   seen are left out. want: how many are returned.
-- approvals, calls: what stands before an id in the names of keys. viewer: words, one of which must be among those of the approval;
--   none: all are seen. conversation: such a word, '' for any.
-- Returns the next rank, -1 at the end; how many are still to be left out; the ids and revisions of those without a summary of
-- their revision, as older processes leave them, at most 20; and what was found before the first of these.
-- keys: index
-- args: start, descending, most, skip, want, approvals, calls, conversation, viewer..., ids...
-- include: approvals/place

start, most, skip, want = tonumber(start), tonumber(most), tonumber(skip), tonumber(want)

local function is_seen(words)
  local function has(word) return string.find(words, ' ' .. word .. ' ', 1, true) end
  if conversation ~= '' and not has(conversation) then return false end
  for _, word in ipairs(viewer) do
    if has(word) then return true end
  end
  return #viewer == 0
end

if #ids == 0 then ids = redis.call(descending == '1' and 'ZREVRANGE' or 'ZRANGE', index, start, start + most - 1) end
local next_rank, stale, found = #ids == most and start + most or -1, {}, {}
for i, id in ipairs(ids) do
  local facts = redis.call('HMGET', approvals .. id, 'revision', 'summarised', 'words')
  if facts[1] and facts[1] ~= facts[2] then
    if #stale == 0 then next_rank = start + i - 1 end
    stale[#stale + 1] = {id, facts[1]}
    if #stale == 20 then break end
  elseif facts[1] and #stale == 0 and is_seen(facts[3]) then
    if skip > 0 then
      skip = skip - 1
    else
      local one = redis.call('HMGET', approvals .. id, 'state', 'revision', 'summary', 'votes', 'journal')
      for k = 1, 5 do one[k] = one[k] or '' end
      one[6], one[7] = approval_place(calls .. id), id
      found[#found + 1] = one
      if #found == want then
        next_rank = start + i
        break
      end
    end
  end
end
return {next_rank, skip, stale, found}
