"""Keeps one process started and waiting, so that files are loaded at once: Python and the SDK take longer than most folders."""

import asyncio

from toolfleet_modules.hosts.processes.fence import Fence
from toolfleet_modules.hosts.processes.tool_process import ToolProcess


class SpareProcess:
    """In the running loop."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._next: asyncio.Task[ToolProcess] | None = None
        self._is_closed = False

    async def take(self) -> ToolProcess:
        """The one that waits, or a new one; another is started for next time. Raises `OSError` and `FenceMissing`."""
        waiting, self._next = self._next, None
        process = await waiting if waiting is not None else await ToolProcess.start(self._fence)
        if process.is_lost:  # somebody ended it meanwhile
            await process.end()
            process = await ToolProcess.start(self._fence)
        if not self._is_closed:
            self._next = asyncio.ensure_future(ToolProcess.start(self._fence))
        return process

    async def aclose(self) -> None:
        """End the one that waits. Raises what its start did."""
        self._is_closed = True
        waiting, self._next = self._next, None
        if waiting is not None:
            process = await waiting
            process.kill()
            await process.end()
