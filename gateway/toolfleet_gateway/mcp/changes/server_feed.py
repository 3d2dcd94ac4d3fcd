"""Follows what changes in modules' MCP servers, once for all streams of a gateway."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.watching import ServerChanges, is_before

log = get_logger(__name__)

Hear = Callable[[str, ServerChange | Literal["lost", "returned"]], None]
"""Is told of a module's change; of "" where changes are gone that nobody has heard of, or Redis has returned."""

_START_SECONDS = 2.0  # for Redis to say where the stream is; later, who listens is told that changes may be lost
_AWAY_SECONDS = 1.0  # before a Redis is asked again that does not answer


class ServerFeed:
    """The changes of one gateway. It follows them while it has listeners, and belongs to the running loop."""

    def __init__(self, changes: ServerChanges) -> None:
        self._changes = changes
        self._listeners = list[Hear]()
        self._started = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def heard_by(self, hear: Hear) -> AsyncGenerator[None]:
        """Tell of what happens in this block, from its first moment on."""
        self._listeners.append(hear)
        if self._reading is None:
            self._started = asyncio.Event()
            self._reading = asyncio.create_task(self._read(self._started), name="toolfleet-mcp-changes")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await self._started.wait()
            yield
        finally:
            self._listeners.remove(hear)
            if not self._listeners:
                self._end()

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self, started: asyncio.Event) -> None:
        last: str | None = None
        was_away = False
        while True:
            try:
                last = await self._begun(last, was_away=was_away)
                was_away = False
                started.set()
                found = await self._changes.after(last)
                if found.are_lost:
                    self._publish("", "lost")
                for module, change in found.changes:
                    self._publish(module, change)
                last = found.until
            except FleetUnavailable as exc:
                if not was_away:
                    log.warning("server_changes_not_followed", error=str(exc))
                was_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception:  # a defect must not end what all listen to
                log.exception("server_changes_not_followed")
                await asyncio.sleep(_AWAY_SECONDS)

    async def _begun(self, last: str | None, *, was_away: bool) -> str:
        """Return where to continue reading. A Redis that was away may have lost entries."""
        if last is not None and not was_away:
            return last
        found = await self._changes.last()
        if was_away:
            self._publish("", "returned")
        if was_away and (last is None or is_before(found, last)):
            self._publish("", "lost")
            return found
        return found if last is None else last

    def _publish(self, module: str, change: ServerChange | Literal["lost", "returned"]) -> None:
        for hear in list(self._listeners):
            hear(module, change)
