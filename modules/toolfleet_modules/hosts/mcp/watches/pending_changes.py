"""Holds changes that nobody was told of yet, each once."""

import asyncio
from collections.abc import Iterable

from toolfleet_registry.functions.server_change import MOST_WATCHED, ServerChange

_MOST = 2 * MOST_WATCHED  # what is watched may be others meanwhile, while nobody can be told


class PendingChanges:
    """At most twice as many as can be watched: of more the first are forgotten."""

    def __init__(self) -> None:
        self._waiting = dict[ServerChange, None]()
        self._there = asyncio.Event()

    def put(self, change: ServerChange) -> None:
        """Note one, unless it is there."""
        self._waiting.setdefault(change)
        if len(self._waiting) > _MOST:
            del self._waiting[next(iter(self._waiting))]
        self._there.set()

    def put_again(self, changes: Iterable[ServerChange]) -> None:
        """Note again what could not be told."""
        for change in changes:
            self.put(change)

    async def take(self) -> tuple[ServerChange, ...]:
        """All that there are, as soon as there is one."""
        await self._there.wait()
        self._there.clear()
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken
