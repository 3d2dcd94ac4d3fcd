"""Opens the store of agents' profiles: where the registry is, as `TOOLFLEET_REGISTRY_URL` says, or the fleet's own Redis."""

from importlib import import_module

from toolfleet_registry.agents.stored.port import ProfileStore
from toolfleet_registry.agents.stored.redis import RedisProfileStore
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings


def open_profile_store(settings: Settings) -> ProfileStore:
    """Open the store; the caller closes it. Raises `SettingsError`; does not connect yet."""
    url = fleet_url(settings.registry_url or settings.redis_url)
    if is_redis_url(url):
        return RedisProfileStore(url, settings.keys, master=settings.sentinel_master)
    try:
        store: ProfileStore = import_module("toolfleet_registry.agents.stored.sql").SQLProfileStore(url)
    except ImportError as exc:
        raise SettingsError(
            f"TOOLFLEET_REGISTRY_URL: A registry in an SQL database needs {exc.name!r}: install 'toolfleet[sql]'."
        ) from exc
    return store


def is_elsewhere(settings: Settings) -> bool:
    """Return whether profiles are not in the fleet's own Redis, so that agents and workers read a copy."""
    return settings.registry_url not in {None, settings.redis_url}
