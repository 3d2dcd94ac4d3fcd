-- Resources of MCP servers that clients watch, by until when (ms).
-- include: clock

-- script: watch(watched; lasts_ms, most, uris...)
-- Notes that resources are watched for lasts_ms from now on. Of more than `most` the last ones are kept.
redis.call('ZREMRANGEBYSCORE', watched, '-inf', now_ms)
for _, uri in ipairs(uris) do redis.call('ZADD', watched, now_ms + lasts_ms, uri) end
redis.call('ZREMRANGEBYRANK', watched, 0, -most - 1)
redis.call('PEXPIRE', watched, lasts_ms)
return redis.call('ZCARD', watched)
