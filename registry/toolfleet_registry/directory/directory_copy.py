"""Keeps what was added to the directory of modules in the registry's store as well, where that is not the fleet's own Redis.

The store is asked in a thread. Fails open: without it the directory goes on, and the copy is made later.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.system.loggers import get_logger

T = TypeVar("T")

_SECONDS = 10.0  # a store answers within 5 s, or not at all

log = get_logger(__name__)


class DirectoryCopy:
    """Of one process. Raises nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_needed = settings.registry_url not in {None, settings.redis_url}
        self._kept: dict[str, str] | None = None

    async def read(self) -> dict[str, str]:
        """The texts that are kept, by module; none where there is no copy, or it cannot be had."""
        found = await self._asked(lambda store: store.kept_modules()) if self._is_needed else None
        self._kept = found
        return found or {}

    async def keep(self, texts: Mapping[str, str]) -> None:
        """Keep exactly these, if others were kept."""
        if self._is_needed and self._kept != texts:
            kept = dict(texts)

            def keep(store: ToolRegistry) -> bool:
                store.keep_modules(kept)
                return True

            if await self._asked(keep):
                self._kept = kept

    async def _asked(self, question: Callable[[ToolRegistry], T]) -> T | None:
        def ask() -> T:
            store = open_store(self._settings)
            try:
                return question(store)
            finally:
                store.close()

        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.to_thread(ask)
        except (FleetUnavailable, SettingsError, TimeoutError) as exc:
            log.warning("modules_not_kept", error=str(exc) or "no answer in time")
            return None
