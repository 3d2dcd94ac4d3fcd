"""Asks a store within a bounded time, and with one error type: it may be a user's own, and raise anything."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from toolfleet_registry.errors import FleetError, StoreAway
from toolfleet_registry.once.memory import MemoryReplies
from toolfleet_registry.once.port import OnceStore, Record

T = TypeVar("T")


class PatientStore:
    """`store`, as far as it answers within `seconds`. Each method raises `StoreAway`."""

    def __init__(self, store: OnceStore, *, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._is_immediate = type(store) is MemoryReplies  # a timer for each of its answers costs more than the answer

    async def get(self, name: str) -> Record | None:
        """Implements `OnceStore.get`."""
        return await self._in_time(self._store.get(name))

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `OnceStore.swap`. A write without an answer may have happened all the same."""
        return await self._in_time(self._store.swap(name, seen, record))

    async def complete_since(self) -> float:
        """Implements `OnceStore.complete_since`."""
        return await self._in_time(self._store.complete_since())

    async def _in_time(self, answer: Awaitable[T]) -> T:
        if self._is_immediate:
            return await answer
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except FleetError as exc:
            raise StoreAway(str(exc)) from exc
        except Exception as exc:
            raise StoreAway(f"{type(exc).__name__}: {exc}") from exc
