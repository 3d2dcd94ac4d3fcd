-- Adds its summary to an approval that an older process has written, or decided about, unless it was decided about since.
-- keys: approval
-- args: revision, summary, words

if redis.call('HGET', approval, 'revision') ~= revision then return 0 end
redis.call('HSET', approval, 'summary', summary, 'summarised', revision, 'words', words)
return 1
