"""Keeps one process started and waiting, so that files are loaded at once: Python and the SDK take longer than most folders."""

import asyncio

from toolfleet_modules.hosts.processes.fence import Fence
from toolfleet_modules.hosts.processes.tool_process import ToolProcess
from toolfleet_modules.hosts.serving.secrets import Secrets


class SpareProcess:
    """In the running loop. `secrets`: as `ToolProcess` has them."""

    def __init__(self, fence: Fence, secrets: Secrets) -> None:
        self._fence = fence
        self._secrets = secrets
        self._next: asyncio.Task[ToolProcess] | None = None
        self._left: list[asyncio.Task[ToolProcess]] = []  # whoever wanted them was cancelled meanwhile
        self._is_closed = False

    async def take(self) -> ToolProcess:
        """The one that waits, or a new one; another is started for next time. Raises `OSError` and `FenceMissing`."""
        waiting, self._next = self._next, None
        process = await self._started(waiting)
        if process.is_lost:  # somebody ended it meanwhile
            await process.end()
            process = await self._started(None)
        if not self._is_closed:
            self._next = asyncio.ensure_future(ToolProcess.start(self._fence, self._secrets))
        return process

    async def _started(self, starting: asyncio.Task[ToolProcess] | None) -> ToolProcess:
        starting = starting or asyncio.ensure_future(ToolProcess.start(self._fence, self._secrets))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._left.append(starting)
            raise

    async def aclose(self) -> None:
        """End those that wait. Raises what their start did."""
        self._is_closed = True
        waiting = [*self._left, *([self._next] if self._next is not None else [])]
        self._left, self._next = [], None
        for each in waiting:
            process = await each
            process.kill()
            await process.end()
