"""Keeps in Redis which resources a session of an older MCP client watches, and which of its streams is told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import MOST_WATCHED
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.system import randomness


class SessionWatches:
    """The watches of one fleet's sessions, for any gateway.

    Raises `FleetUnavailable`. All of it expires with its session.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def add(self, session: ClientSession, uri: str) -> bool:
        """Have the session told of a resource; false if it watches too many."""
        key = self._keys.mcp_session_watches(session.id)
        async with _answering(), self._redis.pipeline() as pipeline:
            pipeline.sadd(key, uri)
            pipeline.scard(key)
            pipeline.pexpire(key, self._ms)
            added, count, _ = await pipeline.execute()
        if not added or count <= MOST_WATCHED:
            return True
        await self.remove(session, uri)
        return False

    async def remove(self, session: ClientSession, uri: str) -> None:
        """Have it told no more."""
        async with _answering():
            await self._redis.srem(self._keys.mcp_session_watches(session.id), uri)

    async def has(self, session: ClientSession, uri: str) -> bool:
        """Return whether the session watches a resource."""
        async with _answering():
            return bool(await self._redis.sismember(self._keys.mcp_session_watches(session.id), uri))

    async def of(self, session: ClientSession) -> list[str]:
        """Return the resources that the session watches."""
        async with _answering():
            found: set[Any] = await self._redis.smembers(self._keys.mcp_session_watches(session.id))
        return sorted(uri.decode("utf-8", "replace") if isinstance(uri, bytes) else uri for uri in found)

    async def take_stream(self, session: ClientSession) -> str:
        """Make a stream the one that is told; returns its name. One that was there before ends: its client has come again."""
        name = randomness.uuid4().hex
        async with _answering():
            await self._redis.set(self._keys.mcp_session_stream(session.id), name, px=self._ms)
        return name

    async def has_stream(self, session: ClientSession, name: str) -> bool:
        """Return whether that is still the one. It is extended, with the session's watches."""
        async with _answering(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.getex(self._keys.mcp_session_stream(session.id), px=self._ms)
            pipeline.pexpire(self._keys.mcp_session_watches(session.id), self._ms)
            found: Any = (await pipeline.execute())[0]
        return (found.decode() if isinstance(found, bytes) else found) == name

    async def forget(self, session: ClientSession) -> None:
        """Forget what there is of a session that has ended."""
        async with _answering():
            names = self._keys.mcp_session_watches(session.id), self._keys.mcp_session_stream(session.id)
            await self._redis.unlink(*names)


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    try:
        yield
    except (RedisError, OSError) as exc:
        raise FleetUnavailable("Redis does not answer.") from exc
