"""Loads the files of a tool folder into new processes, and serves them as they were at one time.

If a file does not load, its previous version is loaded in its place, if there is one.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from toolfleet_modules.hosts.child_process import Backoff, Fence, FenceMissing
from toolfleet_modules.hosts.folder.frames import PACKAGE, LoadOutcome, LoadPlan, SourceText
from toolfleet_modules.hosts.folder.packages import FilePackages, Files, InstallOptions
from toolfleet_modules.hosts.folder.scan import ScanRules
from toolfleet_modules.hosts.folder.source_files import FileFault, SourceFile
from toolfleet_modules.hosts.folder.tool_process import HostedTool, LoadStopped, OwnProcessLane, SharedLane, ToolProcess
from toolfleet_modules.hosts.host import HostOptions
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolSource

_log = logging.getLogger("toolfleet.host")

Security = Literal["off", "warn", "strict"]
"""Whether files are scanned before they are imported, and whether one with a finding is refused."""

Make = Callable[[], Awaitable[ToolProcess]]

_CHECK_SECONDS = 0.1
_BEGIN_SECONDS = 30.0

_VERSION_LENGTH = 12  # of a digest's characters


@dataclass(frozen=True, slots=True)
class FolderOptions(HostOptions):
    """The options of a folder's host.

    `folder` may be missing. `named`: functions by dotted paths, of the `trusted` namespaces only, which Python looks
    for in `python_path`, too. `packages`: how the files' packages are installed.

    `load_seconds`: for one file to be imported; `debounce_ms`: how long changes are gathered at most; `is_lazy`: files
    are imported with the first call of one of their tools; `threads`: of plain functions at once; `processes`: of tools
    with `runs_in="process"`. Calls may continue in the previous generation for `longest_call_seconds`. `owners_file`
    keeps, over restarts of the host, which of two files with a tool of one name serves it. With `exception_text` models
    read the texts of exceptions.
    """

    folder: Path | None
    named: Sequence[str] = ()
    trusted: frozenset[str] = frozenset()
    python_path: Sequence[str] = ()
    owners_file: Path | None = None
    exception_text: bool = False
    security: Security = "warn"
    rules: ScanRules = field(default_factory=ScanRules)
    fence: Fence = field(default_factory=Fence)
    packages: InstallOptions = field(default_factory=lambda: InstallOptions(Path(".toolfleet/environments").resolve()))
    debounce_ms: int = 500  # a save of many files, or a checkout, is one reload
    load_seconds: float = 10.0
    is_lazy: bool = False
    threads: int = 32
    processes: int = os.cpu_count() or 1


class HostFailed(Exception):
    """No process can be started. The message says why."""


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A process with the files of a plan, and what came of it."""

    process: ToolProcess
    plan: LoadPlan
    outcome: LoadOutcome


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """Processes with these files; `faults` has those that could not be used as they are now."""

    groups: Sequence[LoadedGroup]
    files: Mapping[str, SourceFile]
    faults: Mapping[str, FileFault]


class Loader:
    """Starts processes with `make`: one for the files with packages in one place."""

    def __init__(
        self, options: FolderOptions, packages: FilePackages, make: Callable[[], Awaitable[ToolProcess]]
    ) -> None:
        self._options = options
        self._packages = packages
        self._make = make
        self._named = list(options.named)
        self._stopped: dict[
            str, FileFault
        ] = {}  # by digest: files that ended a process, or held it, are not tried again

    def forget_stopped(self) -> None:
        """Have files tried again that ended a process, or held it."""
        self._stopped.clear()
        self._named = list(self._options.named)

    async def load(self, files: Files, before: Files, waiting: Mapping[str, FileFault]) -> LoadedFiles:
        """Load `files`, and in the place of one that does not load, or is `waiting` for its packages, the one of `before`. Raises `HostFailed`."""
        chosen = dict(files)
        stopped = {stem: known for stem, each in files.items() if (known := self._stopped.get(each.digest)) is not None}
        faults = {**waiting, **stopped, **{name: each for name, each in self._stopped.items() if "." in name}}
        for stem in faults.keys() & chosen.keys():
            _step_back(chosen, stem, before)
        while True:
            groups: list[LoadedGroup] = []
            try:
                back = await self._load_groups(chosen, before, faults, groups)
            except BaseException:
                await asyncio.shield(_end(groups))
                raise
            if not back:
                return LoadedFiles(groups, chosen, faults)
            await _end(groups)
            for stem in back:
                if stem in chosen:
                    _step_back(chosen, stem, before)

    async def _load_groups(
        self, chosen: Files, before: Files, faults: dict[str, FileFault], groups: list[LoadedGroup]
    ) -> list[str]:
        """Start a process for each group; returns the files that must be left at another version, or out."""
        for packages, stems in self._packages.groups(chosen).items():
            process = await self._make()
            plan = self._plan(chosen, sorted(stems), packages, is_first=not groups)
            try:
                outcome = await process.load(plan, seconds=self._options.load_seconds)
            except LoadStopped as exc:
                await process.end()
                faults.setdefault(exc.stem, self._stop(exc, chosen))
                return [exc.stem]
            except BaseException:
                await asyncio.shield(process.end())
                raise
            groups.append(LoadedGroup(process, plan, outcome))
            if back := self._note(groups[-1], chosen, before, faults):
                return back
        return []

    def _stop(self, exc: LoadStopped, chosen: Files) -> FileFault:
        """Note a file that must not be tried again. Raises `HostFailed` if no file is at fault."""
        if exc.stem in self._named:
            self._named.remove(exc.stem)
            fault = self._stopped[exc.stem] = FileFault(Path(exc.stem), exc.kind, str(exc))
        elif exc.stem in chosen:
            fault = FileFault(chosen[exc.stem].path, exc.kind, str(exc))
            self._stopped[chosen[exc.stem].digest] = fault
        else:
            raise HostFailed(f"The process for {self._options.name} does not start: {exc}") from exc
        return fault

    def _plan(self, files: Files, stems: Sequence[str], packages: Path | None, *, is_first: bool) -> LoadPlan:
        options = self._options
        texts = {stem: SourceText(str(each.path), each.text) for stem, each in files.items()}
        where = None if packages is None else str(packages)
        named = tuple(self._named) if is_first else ()
        path = options.python_path if named else ()
        means = options.threads, options.result_bytes
        return LoadPlan(options.name, texts, stems, *means, where, named, path, options.exception_text)

    def _note(self, group: LoadedGroup, chosen: Files, before: Files, faults: dict[str, FileFault]) -> list[str]:
        """Note the faults; returns the files for which there is another version to load.

        If a file is broken that others import, the others are not at fault: they are tried again with its previous
        version. A file of another group has its own packages there: its fault here is its importer's.
        """
        found = group.outcome.faults
        broken = [stem for stem in found if stem in chosen and (stem in group.plan.stems or not chosen[stem].has_tools)]
        for name in found.keys() & set(group.plan.named):
            kind, message, _ = found[name]
            faults.setdefault(name, FileFault(Path(name), kind, message))
        helpers = [stem for stem in broken if not chosen[stem].has_tools and _has_other(chosen, stem, before)]
        blamed = helpers or broken
        for stem in blamed:
            kind, message, line = found[stem]
            faults.setdefault(stem, FileFault(chosen[stem].path, kind, message, line))
        return [stem for stem in blamed if _has_other(chosen, stem, before)]


async def _end(groups: Iterable[LoadedGroup]) -> None:
    await asyncio.gather(*(each.process.end() for each in groups))


def _has_other(chosen: Files, stem: str, before: Files) -> bool:
    return stem in before and before[stem].version != chosen[stem].version


def _step_back(chosen: Files, stem: str, before: Files) -> None:
    if _has_other(chosen, stem, before):
        chosen[stem] = before[stem]
    else:
        del chosen[stem]


class FileGroup:
    """A group of files in one process.

    `plan` says which files; `stems` are those with tools that are called here; `first` is a process that has them already.
    In the running loop.
    """

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
        """Return the lane of processes that have only one file imported."""
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
        process, backoff = first, Backoff(0.05, 5.0, lasting_seconds=30.0)
        loop = asyncio.get_running_loop()
        while True:
            process = process or await self._started(self._plan)
            life_seconds = 0.0
            if process is not None:
                began = loop.time()
                await self._served(process)
                life_seconds = loop.time() - began
                _log.warning(
                    "The process of %s has ended (%s); another is started.",
                    self._options.name,
                    await process.exit_words(),
                )
                await process.end()
                process = None
            await asyncio.sleep(backoff.pause(life_seconds))

    async def _served(self, process: ToolProcess) -> None:
        """Give calls to the process, until it is gone."""
        gone = asyncio.Event()
        process.when_lost(gone.set)
        self.lane.process = process
        self.has_begun.set()
        if not process.is_lost:
            await gone.wait()

    async def _started(self, plan: LoadPlan) -> ToolProcess | None:
        """Return a process with the files of a plan; `None` where none can be started now."""
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


class Generation:
    """One set of loaded files.

    `tools` by their full names, `files` by theirs without `.py`; `faults`: files that offer tools of another file, or
    invalid ones.

    `owners`: the files that have served the tools until now, by the tools' names. A name stays its file's as long as
    that has it.
    """

    def __init__(self, loaded: LoadedFiles, options: FolderOptions, make: Make, owners: Mapping[str, str]) -> None:
        self.faults: dict[str, FileFault] = {}
        self._owners = owners
        self._options = options
        self.files = dict(loaded.files)
        self._described = [each.process for each in loaded.groups] if options.is_lazy else []
        self._is_hurried = False
        self._groups = [self._group_of(each, make) for each in loaded.groups]
        self.tools: Mapping[str, HostedTool] = self._tools_of(loaded.groups)

    def sources(self) -> list[ToolSource]:
        """Return the source of each tool."""
        files = ((name, tool.stem, self.files[tool.stem]) for name, tool in sorted(self.tools.items()))
        return [
            ToolSource(tool_name=name, file=str(file.path), python_module=_module_of(stem), digest=file.digest)
            for name, stem, file in files
        ]

    async def start(self) -> None:
        """Return once there are processes that take calls, or it is plain that it takes longer: then calls are turned away."""
        await asyncio.gather(*(each.end() for each in self._described))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_SECONDS):
                for group in self._groups:
                    await group.has_begun.wait()

    def hand_over(self, successor: "Generation") -> None:
        """Have calls that are still on their way go to another generation, once this one is retired."""
        for group in self._groups:
            group.lane.successor = max(successor._groups, key=lambda each: len(each.stems & group.stems)).lane  # noqa: SLF001 - another of its kind

    async def retire(self, seconds: float) -> None:
        """Let its calls end within `seconds`, and end its processes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_busy():  # noqa: ASYNC110 - a look now and then will do
                    await asyncio.sleep(_CHECK_SECONDS)
        await self.aclose()

    def hurry(self) -> None:
        """End the wait of `retire` for its calls."""
        self._is_hurried = True

    def _is_busy(self) -> bool:
        return not self._is_hurried and any(group.is_busy for group in self._groups)

    async def aclose(self) -> None:
        """End its processes now."""
        await asyncio.gather(*[group.aclose() for group in self._groups])  # all are closed before any is waited for

    def _group_of(self, loaded: LoadedGroup, make: Make) -> FileGroup:
        stems = frozenset([*loaded.plan.stems, *loaded.plan.named])
        if self._options.is_lazy:
            return FileGroup(replace(loaded.plan, stems=[], named=[]), stems, self._options, make, None)
        return FileGroup(loaded.plan, stems, self._options, make, loaded.process)

    def _tools_of(self, loaded: Sequence[LoadedGroup]) -> dict[str, HostedTool]:
        """Choose among all groups: of several files with one name the one that had it, else the first by name."""
        tools: dict[str, HostedTool] = {}
        found = [
            (stem, each, group)
            for group, one in zip(self._groups, loaded, strict=True)
            for stem, offered in one.outcome.offered.items()
            for each in offered
        ]
        for stem, each, group in sorted(found, key=lambda it: (not self._had(it[0], it[1]), it[0])):
            self._add(tools, stem, each, group)
        return tools

    def _had(self, stem: str, offered: Mapping[str, Any]) -> bool:
        said = offered.get("definition")
        return isinstance(said, dict) and self._owners.get(str(said.get("name"))) == stem

    def _add(self, tools: dict[str, HostedTool], stem: str, offered: Mapping[str, Any], group: FileGroup) -> None:
        try:
            file = self.files.get(stem) or self._named_file(stem, offered)
            definition = _definition_of(offered, file)
        except (ValidationError, LookupError, TypeError):
            definition = None
        if definition is None or not definition.name.startswith(f"{self._options.name}."):
            path = self.files[stem].path if stem in self.files else Path(stem)
            self.faults.setdefault(stem, FileFault(path, "InvalidTool", "It offers what is no tool."))
            return
        known = tools.get(definition.name)
        if known is not None:
            other = self.files[known.stem].path.name
            message = f"{definition.name} is served from {other}, which had it first, and not from here."
            self.faults.setdefault(stem, FileFault(self.files[stem].path, "DuplicateTool", message))
            return
        is_alone = offered.get("runs_in") == "process"
        named = offered.get("secrets")
        secrets = tuple(each for each in self._options.secrets.names if isinstance(named, list) and each in named)
        names = frozenset((definition.input_schema or {}).get("properties", {}))
        lane = group.own_lane(stem) if is_alone else group.lane
        tools[definition.name] = HostedTool(definition, names, stem, lane, is_alone, secrets)

    def _named_file(self, path: str, offered: Mapping[str, Any]) -> SourceFile:
        """Return the file of a function with a dotted path, as its process says."""
        said = offered["source"]
        file = self.files[path] = SourceFile(Path(said["file"]), "", str(said["digest"]), has_tools=True)
        return file


def _module_of(stem: str) -> str:
    return stem.rpartition(".")[0] or f"{PACKAGE}.{stem}"


def _definition_of(offered: Mapping[str, Any], file: SourceFile) -> ToolDefinition:
    """Return the definition of a tool from its process, with the host's facts: the file, and its content's digest."""
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


def owners_in(file: Path | None) -> dict[str, str]:
    """Return the owners of tools' names that were kept there; none without a file that can be read."""
    try:
        kept = {} if file is None else json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(stem) for name, stem in kept.items()} if isinstance(kept, dict) else {}


def keep_owners(file: Path | None, generation: Generation) -> None:
    """Keep the owners for the host's next start if a name is in two files; else the order of the files says the same."""
    if file is None:
        return
    with contextlib.suppress(OSError):  # where nothing can be written, the next start goes by the files' names
        if not any(fault.kind == "DuplicateTool" for fault in generation.faults.values()):
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(json.dumps({name: tool.stem for name, tool in generation.tools.items()}))
        draft.replace(file)
