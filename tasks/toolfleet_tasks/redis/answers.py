"""Bounds the time that callers wait for an answer of Redis."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.redis.connection import RedisConnectionLost

T = TypeVar("T")

_SECONDS = 5.0


async def answered(work: Awaitable[T]) -> T:
    """Await the work. Raises `FleetUnavailable` instead of any error of Redis and the connection, or after 5 s."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await work
    except (RedisError, RedisConnectionLost, TimeoutError) as exc:
        raise FleetUnavailable(f"Redis does not answer: {exc or 'it took too long'}.") from exc
