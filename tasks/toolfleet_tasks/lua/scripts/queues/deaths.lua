-- `mark_deaths(tag)`: writes into a message whose lease has run out who has died with it. Who was counted and is back, counts no
-- more.

-- A holder has died if nobody listens on its channel, which is so as soon as its process has ended, and it was not told to end.
local is_dead = {}
local function has_died(holder)
  if is_dead[holder] == nil then
    is_dead[holder] = redis.call('PUBSUB', 'NUMSUB', channel_prefix .. holder)[2] == 0
      and redis.call('EXISTS', ending_prefix .. holder) == 0
  end
  return is_dead[holder]
end

local function mark_deaths(tag)
  local held = redis.call('HGET', unacked, tag)
  local holder, item = string.match(tag, '^w(%x+)%-'), held and string.match(held, '^%[({%s*".*)$')
  if not item then return end
  item = string.gsub(item, '^{"redelivered":true,', '{', 1)
  local before, rest = string.match(item, '^{"died":"([%x ]*)",(.*)$')
  local dead = {}
  for one in string.gmatch((before or '') .. ' ' .. (holder or ''), '%x+') do
    if has_died(one) then dead[#dead + 1] = one end
  end
  if #dead == 0 and not before then return end
  local died = #dead > 0 and '"died":"' .. table.concat(dead, ' ') .. '",' or ''
  redis.call('HSET', unacked, tag, '[{"redelivered":true,' .. died .. (rest or string.sub(item, 2)))
end
