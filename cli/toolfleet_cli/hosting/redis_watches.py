"""Finds in the fleet's Redis which resources of a hosted server clients watch, and tells there what has changed."""

from collections.abc import Sequence

from redis.asyncio import Redis

from toolfleet_registry.functions.server_change import ServerChange
from toolfleet_registry.redis.gateway_keys import GatewayKeys
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.watching.server_changes import ServerChanges
from toolfleet_registry.watching.watched_resources import WatchedResources

_REDIS_SECONDS = 5.0


class RedisWatches:
    """Those of one module; `settings` name a Redis. Belongs to the loop that uses it first. Raises `FleetUnavailable`."""

    def __init__(self, settings: Settings, module: str) -> None:
        self._settings, self._module = settings, module
        self._keys = GatewayKeys(settings.keys)
        self._redis: Redis | None = None

    async def watched(self) -> frozenset[str]:
        """The addresses of resources that clients watch now."""
        return await WatchedResources(self._opened(), self._keys).of(self._module)

    async def tell(self, changes: Sequence[ServerChange]) -> None:
        """Tell all gateways."""
        await ServerChanges(self._opened(), self._keys).tell(self._module, changes)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            await self._redis.aclose()
            self._redis = None

    def _opened(self) -> Redis:
        if self._redis is None:
            master = self._settings.sentinel_master
            self._redis = async_client(str(self._settings.redis_url), master=master, timeout_seconds=_REDIS_SECONDS)
        return self._redis


def watches_of(settings: Settings, module: str) -> RedisWatches | None:
    """Those of a module, where the settings name a Redis: without one nobody could be told."""
    return None if settings.redis_url is None else RedisWatches(settings, module)
