"""Stores what a registry knows: in this process, in Redis, or in an SQL database.

`toolfleet_registry.store.sql` is imported by those who want it: it needs SQLAlchemy.
"""

from toolfleet_registry.store.factory import lazy_attribute, open_store
from toolfleet_registry.store.memory import InMemoryToolRegistry
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.store.redis import RedisToolRegistry

__all__ = ["InMemoryToolRegistry", "RedisToolRegistry", "ToolRegistry", "lazy_attribute", "open_store"]
