"""Feeds the directory of modules with what beat's settings name, in a thread: beat itself has no loop."""

import asyncio
import contextlib
import threading

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.settings import Settings

_END_SECONDS = 4.0  # for the thread, which may be waiting for Redis: it ends with the process at the latest


class ModuleFeed:
    """Of one process. Raises nothing while Redis is away, and feeds again when it is back."""

    def __init__(self, settings: Settings) -> None:
        self._watch = ModuleWatch(settings, KnownModules(settings))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="toolfleet-modules", daemon=True)

    def start(self) -> None:
        """Feed from now on, every few seconds."""
        self._thread.start()

    def end(self) -> None:
        """Feed no more, and take back what was fed: other settings may count at once. Takes some seconds at most.

        Safe to call twice, and from a signal's handler.
        """
        self._is_ending = True
        if self._loop is not None and self._keeping is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._keeping.cancel)
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._keeping = asyncio.create_task(self._watch.keep())
        self._loop = asyncio.get_running_loop()
        if self._is_ending:  # before there was anything to cancel
            self._keeping.cancel()
        await asyncio.wait([self._keeping])
        await self._watch.aclose()
        await self._watch.leave()
