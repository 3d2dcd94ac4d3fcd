"""Opens the stores of a fleet: as `TOOLFLEET_REGISTRY_URL` says, or in the fleet's own Redis."""

from importlib import import_module
from typing import Any

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.documents import DocumentKind, DocumentStore, RedisDocuments
from toolfleet_registry.store.redis import RedisToolRegistry
from toolfleet_registry.store.registry import ToolRegistry


def open_store(settings: Settings) -> ToolRegistry:
    """Open the registry's store; the caller closes it. It does not connect yet.

    Args:
        settings: The settings of the fleet.

    Returns:
        The store at `registry_url`, or in the fleet's Redis.

    Raises:
        SettingsError: No store is set, or a package is missing that it needs.

    """
    url = settings.registry_url or settings.redis_url
    if url is None:
        raise SettingsError("TOOLFLEET_REDIS_URL or TOOLFLEET_REGISTRY_URL must be set.")
    if is_redis_url(url):
        return RedisToolRegistry(url, settings.keys, master=settings.sentinel_master)
    store: ToolRegistry = _open_sql("SQLToolRegistry", url)
    return store


def open_documents(settings: Settings, kind: DocumentKind) -> DocumentStore:
    """Open the store that `TOOLFLEET_REGISTRY_URL` names, or the fleet's own Redis. The caller closes it.

    Raises `SettingsError`; does not connect yet.
    """
    url = fleet_url(settings.registry_url or settings.redis_url)
    if is_redis_url(url):
        return RedisDocuments(url, kind, settings.keys, master=settings.sentinel_master)
    store: DocumentStore = _open_sql("SQLDocuments", url, kind)
    return store


def _open_sql(name: str, *arguments: object) -> Any:
    """Open a store of the registry's SQL database. Raises `SettingsError`, also if a package is missing that it needs."""
    try:
        return getattr(import_module("toolfleet_registry.store.sql"), name)(*arguments)
    except ModuleNotFoundError as exc:
        raise SettingsError(f"TOOLFLEET_REGISTRY_URL needs {exc.name!r} here: pip install 'toolfleet[sql]'.") from exc
