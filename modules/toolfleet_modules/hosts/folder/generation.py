"""Serves the files of a tool folder as they were at one time: a process for all, and more for tools that compute."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from toolfleet_modules.hosts.folder.loader import LoadedFiles, Loader
from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.source_files import FileFault, SourceFile
from toolfleet_modules.hosts.processes.fence import FenceMissing
from toolfleet_modules.hosts.processes.hosted_tool import HostedTool
from toolfleet_modules.hosts.processes.lanes import OwnProcessLane, SharedLane
from toolfleet_modules.hosts.processes.load_plan import PACKAGE, LoadPlan
from toolfleet_modules.hosts.processes.tool_process import LoadStopped, ToolProcess
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolSource

_log = logging.getLogger("toolfleet.host")

_BACK_OFF_SECONDS = (0.05, 5.0)  # before a process is started anew: at first, and at most
_LASTING_SECONDS = 30.0  # after which its end is the first one again
_CHECK_SECONDS = 0.1
_BEGIN_SECONDS = 30.0

Make = Callable[[], Awaitable[ToolProcess]]


class Generation:
    """`tools` by their full names, `files` by theirs without `.py`; `faults`: files whose tools another file has already, or that offer what is no tool."""

    def __init__(self, loaded: LoadedFiles, options: FolderOptions, loader: Loader, make: Make) -> None:
        self.faults: dict[str, FileFault] = {}
        self._options = options
        self._make = make
        self.files = loaded.files
        self._plan = loader.plan_of(dict(loaded.files), is_lazy=options.is_lazy)
        self._shared = SharedLane()
        self._is_begun = asyncio.Event()
        self._is_hurried = False
        self._own: dict[str, OwnProcessLane] = {}
        self.tools: Mapping[str, HostedTool] = self._tools_of(loaded)
        self._keeping = asyncio.ensure_future(self._keep(None if options.is_lazy else loaded.process))
        self._described = loaded.process if options.is_lazy else None

    def sources(self) -> list[ToolSource]:
        """Where each tool stands."""
        files = ((name, self.files[tool.stem]) for name, tool in sorted(self.tools.items()))
        return [
            ToolSource(tool_name=name, file=str(file.path), python_module=f"{PACKAGE}.{file.stem}", digest=file.digest)
            for name, file in files
        ]

    async def start(self) -> None:
        """Return once there is a process that takes calls, or it is plain that it takes longer: then calls are turned away."""
        if self._described is not None:
            await self._described.end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_begun.wait(), _BEGIN_SECONDS)

    def hand_over(self, successor: "Generation") -> None:
        """Have calls that are still on their way go to another generation, once this one is retired."""
        self._shared.successor = successor._shared  # noqa: SLF001 - another of its kind

    async def retire(self, seconds: float) -> None:
        """Let its calls end within `seconds`, and end its processes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_busy():  # noqa: ASYNC110 - a look now and then will do
                    await asyncio.sleep(_CHECK_SECONDS)
        await self.aclose()

    def hurry(self) -> None:
        """Have whoever retires it wait for its calls no longer."""
        self._is_hurried = True

    def _is_busy(self) -> bool:
        process = self._shared.process
        return process is not None and bool(process.in_flight) and not self._is_hurried

    async def aclose(self) -> None:
        """End its processes now."""
        process, self._shared.process = self._shared.process, None  # first of all: nothing more is sent there
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
        self._shared.process = process
        self._is_begun.set()
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

    def _own_lane(self, stem: str) -> OwnProcessLane:
        """The processes that have only one file imported."""
        plan = self._plan
        one = LoadPlan(plan.module, plan.files, [stem], 1, plan.result_bytes)

        async def make() -> ToolProcess:
            process = await self._started(one)
            if process is None:
                raise LoadStopped(stem, "ProcessEnded", "no process")
            return process

        return self._own.setdefault(stem, OwnProcessLane(make, most=self._options.processes))

    def _tools_of(self, loaded: LoadedFiles) -> dict[str, HostedTool]:
        tools: dict[str, HostedTool] = {}
        for stem in sorted(loaded.outcome.offered):
            for offered in loaded.outcome.offered[stem]:
                self._add(tools, stem, offered)
        return tools

    def _add(self, tools: dict[str, HostedTool], stem: str, offered: Mapping[str, Any]) -> None:
        file = self.files[stem]
        try:
            definition = _definition_of(offered, file)
        except (ValidationError, LookupError, TypeError):
            definition = None
        if definition is None or not definition.name.startswith(f"{self._options.name}."):
            self.faults.setdefault(stem, FileFault(file.path, "InvalidTool", "It offers what is no tool."))
            return
        known = tools.get(definition.name)
        if known is not None:
            other = self.files[known.stem].path.name
            message = f"{definition.name} is in {other}, too: that one is served."
            self.faults.setdefault(stem, FileFault(file.path, "DuplicateTool", message))
            return
        is_alone = offered.get("runs_in") == "process"
        named = offered.get("secrets")
        secrets = tuple(each for each in self._options.secrets.names if isinstance(named, list) and each in named)
        names = frozenset((definition.input_schema or {}).get("properties", {}))
        lane = self._own_lane(stem) if is_alone else self._shared
        tools[definition.name] = HostedTool(definition, names, stem, lane, is_alone, secrets)


def _definition_of(offered: Mapping[str, Any], file: SourceFile) -> ToolDefinition:
    """What the process says of a tool, with what is known here: the file, and its content's digest."""
    input_schema, output_schema = offered["schemas"]
    said = dict(offered["definition"])
    return ToolDefinition.model_validate(
        {
            **said,
            "input_schema": input_schema,
            "output_schema": output_schema,
            "version": said.get("version") or file.digest[:_VERSION_LENGTH],
            "code_digest": file.digest,
        }
    )


_VERSION_LENGTH = 12  # of a digest's characters
