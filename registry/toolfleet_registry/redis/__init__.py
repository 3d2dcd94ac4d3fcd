"""Names every key in Redis, and seals what lies there."""
