"""Opens the store of a fleet's API keys: where its registry is, as `TOOLFLEET_REGISTRY_URL` says, or the fleet's own Redis."""

from importlib import import_module

from toolfleet_registry.access.port import KeyStore
from toolfleet_registry.access.redis import RedisKeyStore
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings


def open_key_store(settings: Settings) -> KeyStore:
    """Open the store; the caller closes it. Raises `SettingsError`; does not connect yet."""
    url = fleet_url(settings.registry_url or settings.redis_url)
    if is_redis_url(url):
        return RedisKeyStore(url, settings.keys, master=settings.sentinel_master)
    try:
        store: KeyStore = import_module("toolfleet_registry.access.sql").SQLKeyStore(url)
    except ImportError as exc:
        raise SettingsError(
            f"TOOLFLEET_REGISTRY_URL: A registry in an SQL database needs {exc.name!r}: install 'toolfleet[sql]'."
        ) from exc
    return store
