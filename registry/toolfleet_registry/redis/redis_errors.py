"""A Redis that answers in time, or an error that names it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable


@asynccontextmanager
async def answering(redis: Redis, *, seconds: float) -> AsyncGenerator[None]:
    """Whatever is asked inside is answered within `seconds`. Else, and for any error, raises `FleetUnavailable`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (RedisError, OSError) as exc:  # TimeoutError is an OSError
        reason = str(exc) or f"no answer within {seconds} s"
        raise FleetUnavailable(f"Redis at {address_of(redis)} does not answer: {reason}") from exc


def address_of(redis: Redis | SyncRedis) -> str:
    """Where a client connects to; never with a password."""
    options = redis.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix:{options['path']}"
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    master = getattr(redis.connection_pool, "service_name", None)  # of redis-py's own pool for sentinels
    return str(options.get("sentinels", f"master {master!r} of its sentinels" if master else "an unnamed address"))
