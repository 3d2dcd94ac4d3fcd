"""Queues what one client is to be told of, each change once: however slow it reads, it waits for no more than it has asked for."""

import asyncio
from dataclasses import dataclass
from typing import Literal

ViewChangeKind = Literal["tools", "prompts", "resources", "resource", "task", "lost", "returned"]


@dataclass(frozen=True, slots=True)
class ViewChange:
    """One change. `subject`: the address of a resource, or a task's id.

    `lost`: anything that may change may have. `returned`: Redis answers again, and may have lost what is watched.
    """

    kind: ViewChangeKind
    subject: str = ""


_MOST = 5_000  # changes of others' resources are among them; who is further behind is told that some are lost
_LOST = ViewChange("lost")


class ChangeQueue:
    """Iterated over by one reader, until it is closed and empty."""

    def __init__(self) -> None:
        self._waiting = dict[ViewChange, None]()
        self._there = asyncio.Event()
        self._is_closed = False

    def put(self, change: ViewChange) -> None:
        """Have one told, unless it waits already."""
        if len(self._waiting) >= _MOST and change.kind == "resource":
            change = _LOST
        self._waiting.setdefault(change)
        self._there.set()

    def close(self) -> None:
        """End it once the reader has what there is."""
        self._is_closed = True
        self._there.set()

    def __aiter__(self) -> "ChangeQueue":
        return self

    async def __anext__(self) -> ViewChange:
        while not self._waiting:
            if self._is_closed:
                raise StopAsyncIteration
            self._there.clear()
            await self._there.wait()
        first = next(iter(self._waiting))
        del self._waiting[first]
        return first
