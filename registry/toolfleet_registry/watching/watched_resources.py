"""Keeps which resources of modules are watched by clients, each for as long as some gateway says so again."""

from collections.abc import Awaitable, Iterable
from typing import Final, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.functions.server_change import MOST_WATCHED
from toolfleet_registry.lua.files import script
from toolfleet_registry.redis.gateway_keys import GatewayKeys
from toolfleet_registry.redis.redis_errors import answering

RENEW_SECONDS: Final = 60.0
"""How often a gateway says again what its clients watch."""

_LASTS_MS = 180_000  # two may be missed
_PATIENCE_SECONDS = 5

_WATCH = script("watching/watch")
_WATCHED = script("watching/watched")


class WatchedResources:
    """Those of one fleet. Raises `FleetUnavailable` when Redis does not answer within 5 s.

    Whoever does not want one any more says so by silence: others may watch the same.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def watch(self, module: str, uris: Iterable[str]) -> None:
        """Have a module's resources watched for three minutes from now on. Of more than 1,000 the last ones are."""
        wanted = list(dict.fromkeys(uris))[:MOST_WATCHED]
        if not wanted:
            return
        key = self._keys.mcp_watched(module)
        command = _WATCH.command(watched=key, lasts_ms=_LASTS_MS, most=MOST_WATCHED, uris=wanted)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            await self._redis.execute_command(*command)

    async def of(self, module: str) -> frozenset[str]:
        """What is watched of a module now."""
        command = _WATCHED.command(watched=self._keys.mcp_watched(module))
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = self._redis.execute_command(*command, **{NEVER_DECODE: True})
            found = await cast("Awaitable[list[bytes]]", answer)
        return frozenset(uri.decode("utf-8", "replace") for uri in found)
