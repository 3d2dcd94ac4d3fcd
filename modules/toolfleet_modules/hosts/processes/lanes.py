"""Says which process a call goes to: the one of its folder, or one that it has for itself."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from toolfleet_modules.hosts.processes.tool_process import ToolProcess
from toolfleet_registry.functions.failures import ModuleBusy

_RETURN_SECONDS = 1.0  # until there may be a process again


class SharedLane:
    """One process for all calls; `process` is replaced when it has ended.

    With a `successor`, calls that come when the process is gone go there: they were admitted a moment before it took
    over.
    """

    def __init__(self) -> None:
        self.process: ToolProcess | None = None
        self.successor: SharedLane | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[ToolProcess]:
        """Give the process that there is. Raises `ModuleBusy` if there is none."""
        lane = self
        while lane.process is None and lane.successor is not None:
            lane = lane.successor
        if lane.process is None or lane.process.is_lost:
            raise ModuleBusy(_RETURN_SECONDS)
        yield lane.process


class OwnProcessLane:
    """A process for each call, at most `most` at once: one that has come to its end is used again."""

    def __init__(self, make: Callable[[], Awaitable[ToolProcess]], *, most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._idle: list[ToolProcess] = []
        self._is_closed = False

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[ToolProcess]:
        """Wait for room, and give a process. One whose call was not answered is ended."""
        async with self._slots:
            process = await self._next()
            try:
                yield process
            finally:
                if process.is_lost or process.in_flight or self._is_closed:
                    process.kill()
                    await asyncio.shield(process.end())
                else:
                    self._idle.append(process)

    async def _next(self) -> ToolProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.is_lost:
                return process
        return await self._make()

    async def aclose(self) -> None:
        """End those that are idle; the others end with their calls."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        with contextlib.suppress(OSError):
            await asyncio.gather(*(each.end() for each in idle))


Lane: TypeAlias = SharedLane | OwnProcessLane
"""Gives calls their process."""
