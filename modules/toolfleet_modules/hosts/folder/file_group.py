"""Serves the files of a folder that share their packages: keeps a process for all of them, and more for tools that compute."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.processes.fence import FenceMissing
from toolfleet_modules.hosts.processes.lanes import OwnProcessLane, SharedLane
from toolfleet_modules.hosts.processes.load_plan import LoadPlan
from toolfleet_modules.hosts.processes.tool_process import LoadStopped, ToolProcess

_log = logging.getLogger("toolfleet.host")

_BACK_OFF_SECONDS = (0.05, 5.0)  # before a process is started anew: at first, and at most
_LASTING_SECONDS = 30.0  # after which its end is the first one again

Make = Callable[[], Awaitable[ToolProcess]]


class FileGroup:
    """`plan` says which files; `stems` are those whose tools are called here; `first` is a process that has them already. In the running loop."""

    def __init__(
        self, plan: LoadPlan, stems: frozenset[str], options: FolderOptions, make: Make, first: ToolProcess | None
    ) -> None:
        self.stems = stems
        self.lane = SharedLane()
        self.has_begun = asyncio.Event()
        self._plan = plan
        self._options = options
        self._make = make
        self._own: dict[str, OwnProcessLane] = {}
        self._keeping = asyncio.ensure_future(self._keep(first))

    @property
    def is_busy(self) -> bool:
        """Whether its process has calls."""
        return self.lane.process is not None and bool(self.lane.process.in_flight)

    def own_lane(self, stem: str) -> OwnProcessLane:
        """The processes that have only one file imported."""
        one = replace(self._plan, stems=[stem], named=[], threads=1)

        async def make() -> ToolProcess:
            process = await self._started(one)
            if process is None:
                raise OSError(f"no process for {stem}")
            return process

        return self._own.setdefault(stem, OwnProcessLane(make, most=self._options.processes))

    def aclose(self) -> Awaitable[None]:
        """End its processes; from when this is called, nothing more is sent there."""
        process, self.lane.process = self.lane.process, None
        return self._end(process)

    async def _end(self, process: ToolProcess | None) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        for lane in self._own.values():
            await lane.aclose()
        if process is not None:
            await process.end()

    async def _keep(self, first: ToolProcess | None) -> None:
        """Have one process serve; when it ends, start another, after a pause that grows."""
        process, pause = first, _BACK_OFF_SECONDS[0]
        loop = asyncio.get_running_loop()
        while True:
            process = process or await self._started(self._plan)
            if process is not None:
                began = loop.time()
                await self._served(process)
                pause = _BACK_OFF_SECONDS[0] if loop.time() - began > _LASTING_SECONDS else pause
                _log.warning(
                    "The process of %s has ended (%s); another is started.",
                    self._options.name,
                    await process.exit_words(),
                )
                await process.end()
                process = None
            await asyncio.sleep(pause)
            pause = min(pause * 2, _BACK_OFF_SECONDS[1])

    async def _served(self, process: ToolProcess) -> None:
        """Give calls to the process, until it is gone."""
        gone = asyncio.Event()
        process.when_lost(gone.set)
        self.lane.process = process
        self.has_begun.set()
        if not process.is_lost:
            await gone.wait()

    async def _started(self, plan: LoadPlan) -> ToolProcess | None:
        """A process with the files of a plan; `None` where none can be started now."""
        try:
            process = await self._make()
        except (OSError, FenceMissing) as exc:
            _log.error("No process for %s: %s", self._options.name, exc)
            return None
        try:
            await process.load(plan, seconds=self._options.load_seconds)
        except LoadStopped as exc:
            _log.error("A process for %s did not load %s: %s", self._options.name, exc.stem, exc)
            await process.end()
            return None
        except BaseException:
            await asyncio.shield(process.end())
            raise
        return process
