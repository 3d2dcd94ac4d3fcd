"""Loads the files of a tool folder into new processes, with the packages they ask for: a file that does not load is left at the version before, or out.

Requirements that go together share one environment; there are as many as it takes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from toolfleet_modules.hosts.folder.frames import LoadOutcome, LoadPlan, SourceText
from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.packages import Environments, Installer, InstallFailed, InstallOptions, Requirements
from toolfleet_modules.hosts.folder.source_files import REQUIREMENTS_FILE, FileFault, FolderReading, SourceFile
from toolfleet_modules.hosts.folder.tool_process import LoadStopped, ToolProcess
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

Files = dict[str, SourceFile]
"""By their names without `.py`."""

_RETRY_SECONDS = 300.0  # until what could not be installed is tried again: an index may have been away

Key = TypeVar("Key", bound=Hashable)


class FilePackages:
    """The packages of one folder's files.

    `on_ready` is called when requested packages have come, or are unavailable.
    """

    def __init__(self, folder: Path, options: InstallOptions, on_ready: Callable[[], None]) -> None:
        installer = Installer(options, folder)
        environments = Environments(options, installer)
        self._folder = folder
        self._listed: Requirements | None = None  # of the `requirements.txt` that is in effect
        self.sets = PackageSets(environments, installer, on_ready)
        self.use = environments.use

    def given(self, reading: FolderReading, files: Files) -> tuple[Files, Mapping[str, FileFault]]:
        """The files with all the packages that they need, and why which of them cannot be loaded so.

        Nothing is installed where no file has tools. Until a changed `requirements.txt` is installed, the one before holds.
        """
        if not any(each.has_tools for each in files.values()):
            return files, {}
        faults: dict[str, FileFault] = {}
        listed = (self._listed or frozenset()) if REQUIREMENTS_FILE in reading.faults else reading.requirements
        base = listed if self.sets.failure(listed) is None or self._listed is None else self._listed
        self.sets.want([listed, *(base | each.requirements for each in files.values() if each.has_tools)])
        if self.sets.is_ready(listed):
            self._listed = listed
        else:
            faults[REQUIREMENTS_FILE] = self._fault(self._folder / REQUIREMENTS_FILE, listed)
        base = listed if self._listed is None else self._listed
        complete = {stem: replace(each, requirements=base | each.requirements) for stem, each in files.items()}
        for stem, each in complete.items():
            if each.has_tools and not self.sets.is_ready(each.requirements):
                faults[stem] = self._fault(each.path, each.requirements)
        return complete, faults

    def groups(self, files: Files) -> dict[Path | None, list[str]]:
        """Divide the files with tools by where their packages are."""
        return self.sets.groups({stem: each.requirements for stem, each in files.items() if each.has_tools})

    def _fault(self, path: Path, wanted: Requirements) -> FileFault:
        if (why := self.sets.failure(wanted)) is not None:
            return FileFault(path, "InstallError", why)
        return FileFault(path, "Installing", "Its packages are being installed.")


class PackageSets:
    """The environments of one host's requirements. Installing runs in the background: `on_ready` is called at its end."""

    def __init__(self, environments: Environments, installer: Installer, on_ready: Callable[[], None]) -> None:
        self._environments = environments
        self._installer = installer
        self._on_ready = on_ready
        self._ready: dict[Requirements, Path] = {}
        self._failed: dict[Requirements, tuple[str, float]] = {}
        self._installing: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a failed installation must be tried again."""
        now = machine_clock.monotonic()
        return any(now - at > _RETRY_SECONDS for _, at in self._failed.values())

    def forget_failures(self, *, is_forced: bool) -> None:
        """Have failed installations tried again: all of them, or the due ones."""
        now = machine_clock.monotonic()
        self._failed = {
            key: (message, at)
            for key, (message, at) in self._failed.items()
            if not is_forced and now - at <= _RETRY_SECONDS
        }

    def want(self, wanted: Iterable[Requirements]) -> None:
        """Have these installed, as far as they are not there."""
        sets = {each for each in wanted if each}
        self._ready = {each: path for each, path in self._ready.items() if path.is_dir()}
        for each in [frozenset[str]().union(*sets), *sets]:
            if each and each not in self._ready and (found := self._environments.find(each)) is not None:
                self._ready[each] = found
        missing = [each for each in sets if not self.is_ready(each) and each not in self._failed]
        if missing and self._installing is None:
            good = [each for each in sets if each not in self._failed]
            self._installing = asyncio.ensure_future(self._install(good))
            self._installing.add_done_callback(self._end)

    def is_ready(self, wanted: Requirements) -> bool:
        """Return whether an environment has all of these."""
        return not wanted or any(wanted <= each for each in self._ready)

    def failure(self, wanted: Requirements) -> str | None:
        """Return why these are unavailable; `None` as long as they may come."""
        found = self._failed.get(wanted)
        return None if found is None else found[0]

    def groups(self, wanted: Mapping[Key, Requirements]) -> dict[Path | None, list[Key]]:
        """Divide the ready sets into as few environments as possible; keys without packages go with the first, which is the largest group."""
        left = {key: each for key, each in wanted.items() if each}
        found: dict[Path | None, list[Key]] = {}
        while left:
            covered = {env: [key for key, each in left.items() if each <= env] for env in self._ready}
            best = max(covered, key=lambda env: (len(covered[env]), -len(env), sorted(env)), default=frozenset())
            if not covered.get(best):  # an environment has been taken away: their imports say what is missing
                found[None] = list(left)
                break
            found[self._ready[best]] = covered[best]
            left = {key: each for key, each in left.items() if not each <= best}
        rest = [key for key, each in wanted.items() if not each]
        if rest or not found:
            found.setdefault(next(iter(found), None), []).extend(rest)
        return found

    async def aclose(self) -> None:
        """Cancel the running installation."""
        if self._installing is not None:
            self._installing.cancel()
            await asyncio.gather(self._installing, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._installing = None
        if task.cancelled():
            return
        if (exc := task.exception()) is not None:
            _log.error("Packages were not installed", exc_info=exc)
        self._on_ready()

    async def _install(self, sets: Collection[Requirements]) -> None:
        """All together; and where that is not possible, as many together as go."""
        together = frozenset[str]().union(*sets)
        try:
            self._ready[together] = await self._environments.take(together)
        except InstallFailed as exc:
            if len(sets) == 1:
                self._fail(sets, exc)
                return
        else:
            return
        for group in await self._compatible(sets):
            union = frozenset[str]().union(*group)
            try:
                self._ready[union] = await self._environments.take(union)
            except InstallFailed as exc:
                self._fail(group, exc)

    async def _compatible(self, sets: Collection[Requirements]) -> list[list[Requirements]]:
        """Return compatible sets, each with the first ones that it fits; one that cannot be installed by itself fails."""
        groups: list[list[Requirements]] = []
        for each in sorted(sets, key=sorted):
            if self.is_ready(each):
                continue
            try:
                await self._installer.resolve(each)
            except InstallFailed as exc:
                self._fail([each], exc)
                continue
            for group in groups:
                if await self._goes(each.union(*group)):
                    group.append(each)
                    break
            else:
                groups.append([each])
        return groups

    async def _goes(self, requirements: Requirements) -> bool:
        try:
            await self._installer.resolve(requirements)
        except InstallFailed:
            return False
        return True

    def _fail(self, sets: Iterable[Requirements], exc: InstallFailed) -> None:
        for each in sets:
            self._failed[each] = str(exc), machine_clock.monotonic()


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
