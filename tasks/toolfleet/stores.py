"""Opens registries on their own: operators' decisions about tools, in memory, in Redis, or in an SQL database.

`SQLToolRegistry` needs `toolfleet[sql]`, and is imported on first use.
"""

from typing import TYPE_CHECKING

from toolfleet_registry.errors import RegistryEventsLost
from toolfleet_registry.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
    compare_versions,
    is_later,
)
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.store.memory import InMemoryToolRegistry
from toolfleet_registry.store.redis import RedisToolRegistry
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_registry.store.sql import SQLToolRegistry
else:
    __getattr__ = lazy_names(__name__, {"toolfleet_registry.store.sql": "SQLToolRegistry"}, install="toolfleet[sql]")

__all__ = [
    "InMemoryToolRegistry",
    "RedisToolRegistry",
    "RegistryEvent",
    "RegistryEventsLost",
    "SQLToolRegistry",
    "ToolFinding",
    "ToolRegistration",
    "ToolRegistry",
    "ToolRegistrySnapshot",
    "ToolSpec",
    "compare_versions",
    "is_later",
    "open_store",
]
