-- Forgets dead news.
-- keys: dead, dead_order, dead_bytes
-- args: id
-- include: wakeups/dead

return dead_drop(id)
