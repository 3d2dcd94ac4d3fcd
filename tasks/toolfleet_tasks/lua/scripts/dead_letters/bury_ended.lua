-- Keeps the letter of a call that has ended already, and of all letters the `kept` latest ones.
-- keys: record, dead, dead_order
-- args: call_id, letter, kept
-- include: now, dead_letters/bury

bury(dead, dead_order, call_id, now, letter, tonumber(kept), redis.call('HGET', record, 'log'))
return 1
