"""Opens the store of a kind of documents: where the registry is, or in the fleet's own Redis."""

from toolfleet_registry.documents.port import DocumentKind, DocumentStore
from toolfleet_registry.documents.redis import RedisDocuments
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_sql


def open_documents(settings: Settings, kind: DocumentKind) -> DocumentStore:
    """Open the store that `TOOLFLEET_REGISTRY_URL` names, or the fleet's own Redis. The caller closes it.

    Raises `SettingsError`; does not connect yet.
    """
    url = fleet_url(settings.registry_url or settings.redis_url)
    if is_redis_url(url):
        return RedisDocuments(url, kind, settings.keys, master=settings.sentinel_master)
    store: DocumentStore = open_sql("toolfleet_registry.documents.sql", "SQLDocuments", url, kind)
    return store
