-- For how long nobody has consumed a queue. Changes nothing.
-- keys: notes, queue
-- include: consumers/unserved

return unserved_ms(string.match(notes, '^(.*)consumers$'), queue)
