"""Takes everything that lies in a Redis, as JSON text, and puts it into another one."""

import json
from typing import Any

from redis import Redis

_GONE = "none"  # what Redis says of a key that a fleet which goes on has taken back meanwhile
_KEPT_SECONDS = 3600  # for what had a TTL: the snapshot's own time is over


def take(url: str) -> str:
    """Every key with its type and value, sorted, one a line, and whether it lasts."""
    with Redis.from_url(url, encoding_errors="surrogateescape", decode_responses=True) as redis:
        kinds = {str(key): str(redis.type(key)) for key in redis.scan_iter()}
        found = {
            key: {"lasts": redis.ttl(key) == -1, "type": kind, "value": _read(redis, key, kind)}
            for key, kind in kinds.items()
            if kind != _GONE
        }
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found)) + "\n}\n"


def restore(url: str, text: str) -> None:
    """Put a snapshot into an empty Redis; what had a TTL gets an hour."""
    with Redis.from_url(url, encoding_errors="surrogateescape", decode_responses=True) as redis:
        for key, found in json.loads(text).items():
            _write(redis, key, found["type"], found["value"])
            if not found["lasts"]:
                redis.expire(key, _KEPT_SECONDS)


def _read(redis: Redis, key: str, kind: str) -> Any:
    if kind == "string":
        return redis.get(key)
    if kind == "list":
        return redis.lrange(key, 0, -1)
    if kind == "set":
        return sorted(map(str, redis.smembers(key)))
    if kind == "hash":
        return redis.hgetall(key)
    if kind == "zset":
        return redis.zrange(key, 0, -1, withscores=True)
    assert kind == "stream", key
    return redis.xrange(key)


def _write(redis: Redis, key: str, kind: str, value: Any) -> None:
    if kind == "string":
        redis.set(key, value)
    elif kind == "list":
        redis.rpush(key, *value)
    elif kind == "set":
        redis.sadd(key, *value)
    elif kind == "hash":
        redis.hset(key, mapping=value)
    elif kind == "zset":
        redis.zadd(key, {member: float(score) for member, score in value})
    else:
        for entry_id, fields in value:
            redis.xadd(key, fields, id=entry_id)
