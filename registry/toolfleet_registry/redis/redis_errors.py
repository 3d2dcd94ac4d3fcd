"""Waits for Redis's answer for a bounded time, or raises an error that names it."""

import asyncio
import errno
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from socket import gaierror

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable

_DEEPEST = 5  # errors that were made of one another


@asynccontextmanager
async def answering(redis: Redis, *, seconds: float) -> AsyncGenerator[None]:
    """Raise `FleetUnavailable` if a request inside is not answered within `seconds`, or fails."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (RedisError, OSError) as exc:  # TimeoutError is an OSError
        reason = reason_of(exc, f"no answer within {seconds} s")
        raise FleetUnavailable(f"Redis at {address_of(redis)} does not answer: {reason}") from exc


def reason_of(exc: BaseException, otherwise: str) -> str:
    """Return why a server does not answer, in words for people: the usual cause, else the error's text, or `otherwise`.

    The reason names no address: the caller decides which address may be named, and how.
    """
    at: BaseException | None = exc
    for _ in range(_DEEPEST):
        if isinstance(at, gaierror):
            return "its host name cannot be resolved"
        if isinstance(at, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(at):
            return "nobody listens there"  # at none of its addresses, if it has several: the text has them all
        at = None if at is None else at.__cause__ or at.__context__
    return str(exc) or otherwise


def address_of(redis: Redis | SyncRedis) -> str:
    """Return the address a client connects to; never with a password."""
    options = redis.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix:{options['path']}"
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    master = getattr(redis.connection_pool, "service_name", None)  # of redis-py's own pool for sentinels
    return str(options.get("sentinels", f"master {master!r} of its sentinels" if master else "an unnamed address"))
