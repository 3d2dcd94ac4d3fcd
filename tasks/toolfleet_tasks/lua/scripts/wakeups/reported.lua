-- A reader was told how many entries were trimmed; more since then it is told again, with these.
-- keys: lost
-- args: said

if redis.call('GET', lost) == said then return redis.call('DEL', lost) end
return 0
