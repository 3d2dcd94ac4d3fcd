-- Asks for a look at all modules that begins after this moment: one that has begun may have asked a module before it.
-- asked: how many were asked for. waiting: the one that nobody has begun, which is shared for together_ms.
-- prefix: what the keys of single looks begin with.
-- keys: asked, waiting
-- args: together_ms, prefix

local number = redis.call('GET', waiting)
if number and redis.call('EXISTS', prefix .. number) == 0 then return tonumber(number) end
number = redis.call('INCR', asked)
redis.call('SET', waiting, number, 'PX', together_ms)
return number
