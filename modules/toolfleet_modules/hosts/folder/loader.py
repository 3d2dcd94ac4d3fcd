"""Loads the files of a tool folder into new processes: of a file that does not load, the previous version stays, or none."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.child_process import Fence
from toolfleet_modules.hosts.folder.frames import LoadOutcome, LoadPlan, SourceText
from toolfleet_modules.hosts.folder.packages import FilePackages, Files, InstallOptions
from toolfleet_modules.hosts.folder.scan import ScanRules
from toolfleet_modules.hosts.folder.source_files import FileFault, SourceFile
from toolfleet_modules.hosts.folder.tool_process import LoadStopped, ToolProcess
from toolfleet_modules.hosts.host import HostOptions

_log = logging.getLogger("toolfleet.host")

Security = Literal["off", "warn", "strict"]
"""Whether files are scanned before they are imported, and whether one with a finding is refused."""


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
    """Starts processes with `make`: one for the files whose packages are in one place."""

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
