"""Names every key in Redis, and says how a Redis is reached."""
