"""Feeds the directory of modules with what beat's settings name, in a thread: beat itself has no loop."""

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.loop_thread import LoopThread

_END_SECONDS = 4.0  # for the thread, which may be waiting for Redis: it ends with the process at the latest


class ModuleFeed:
    """Of one process. Raises nothing while Redis is away, and feeds again when it is back."""

    def __init__(self, settings: Settings) -> None:
        self._watch = ModuleWatch(settings, KnownModules(settings))
        self._thread = LoopThread(self._watch.keep, name="toolfleet-modules", last=self._leave)

    def start(self) -> None:
        """Feed from now on, every few seconds."""
        self._thread.start()

    def end(self) -> None:
        """Feed no more, and take back what was fed: other settings may count at once. Takes some seconds at most.

        Safe to call twice, and from a signal's handler.
        """
        self._thread.end(seconds=_END_SECONDS)

    async def _leave(self) -> None:
        await self._watch.aclose()
        await self._watch.leave()
