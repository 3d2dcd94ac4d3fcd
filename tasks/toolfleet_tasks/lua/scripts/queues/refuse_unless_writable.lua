-- Redis refuses a script's first write, if it takes none (out of memory, replica, failing disk): this one changes nothing.

redis.call('ZADD', unacked_index, 'XX', 'GT', '-inf', '')
