"""Opens the store of a fleet's registry: as `TOOLFLEET_REGISTRY_URL` says, or the fleet's own Redis."""

from importlib import import_module
from typing import Any

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.store.redis import RedisToolRegistry


def open_store(settings: Settings) -> ToolRegistry:
    """Open the registry's store; the caller closes it.

    Raises `SettingsError` if there is none, or a package is missing that it needs; does not connect yet.
    """
    url = settings.registry_url or settings.redis_url
    if url is None:
        raise SettingsError("TOOLFLEET_REDIS_URL or TOOLFLEET_REGISTRY_URL must be set.")
    if is_redis_url(url):
        return RedisToolRegistry(url, settings.keys, master=settings.sentinel_master)
    store: ToolRegistry = open_sql("toolfleet_registry.store.sql", "SQLToolRegistry", url)
    return store


def open_sql(module: str, name: str, *arguments: object) -> Any:
    """Open a store of the registry's SQL database. Raises `SettingsError`, also where a package is missing that it needs."""
    try:
        return _sql_class(module, name)(*arguments)
    except ImportError as exc:
        raise SettingsError(f"TOOLFLEET_REGISTRY_URL: {exc}") from exc


def lazy_attribute(name: str) -> Any:
    """`SQLToolRegistry`, by name: a module's `__getattr__`, so that only who wants it needs SQLAlchemy."""
    if name != "SQLToolRegistry":
        raise AttributeError(f"there is no {name!r} here")
    return _sql_class("toolfleet_registry.store.sql", name)


def _sql_class(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError as exc:
        raise ImportError(f"A registry in an SQL database needs {exc.name!r}: install 'toolfleet[sql]'.") from exc
