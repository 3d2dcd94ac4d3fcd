"""Runs one coroutine function on a loop of its own, in a thread, for processes that have no loop."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from toolfleet_registry.system.process import this_process
from toolfleet_tasks.aio.greenlet_bridge import run_here


class LoopThread:
    """Runs `main` from `start` to `end`, which cancels it; `last` runs after that. Both must end soon then, or end with the process."""

    def __init__(
        self,
        main: Callable[[], Coroutine[object, object, None]],
        *,
        name: str,
        last: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self._main, self._last = main, last
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_ending = False
        self._thread = this_process().thread(self._run, name=name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, *, seconds: float) -> None:
        """Cancel it, and wait so long for its end. Safe to call twice, and from a signal's handler."""
        self._is_ending = True
        if self._loop is not None and self._running is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._running.cancel)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        run_here(self._keep())

    async def _keep(self) -> None:
        self._running = asyncio.create_task(self._main())
        self._loop = asyncio.get_running_loop()
        if self._is_ending:  # before there was anything to cancel
            self._running.cancel()
        await asyncio.wait([self._running])
        await self._last()
