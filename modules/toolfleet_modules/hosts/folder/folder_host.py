"""Serves a folder of Python files as a module: what changes in a file is served a moment later, and nothing is away meanwhile."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolfleet_modules.hosts.child_process import Fence, remove_abandoned_soon
from toolfleet_modules.hosts.folder.generation import (
    FolderOptions,
    Generation,
    HostFailed,
    Loader,
    keep_owners,
    owners_in,
)
from toolfleet_modules.hosts.folder.packages import FilePackages, Files
from toolfleet_modules.hosts.folder.scan import ScanFinding, scan
from toolfleet_modules.hosts.folder.source_files import (
    REQUIREMENTS_FILE,
    FileFault,
    FolderReading,
    FolderUnreadable,
    SourceFile,
    SourceFolder,
    nothing_in,
)
from toolfleet_modules.hosts.folder.tool_process import HostedTool, ToolProcess
from toolfleet_modules.hosts.host import Host, Listener, file_changes, load_error
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import NO_TOOLS, InEffect, ToolLoadError

_log = logging.getLogger("toolfleet.host")

_MOST_FINDINGS = 5  # told of one file
_END_SECONDS = 3.0  # for calls to end when the host does


class ScannedFiles:
    """The scanned files, by the mode and the rules of the options."""

    def __init__(self, options: FolderOptions) -> None:
        self._options = options
        self._found: dict[Path, tuple[str, Sequence[ScanFinding]]] = {}  # by path: the digest, and what was found

    def scan_changed(self, reading: FolderReading, folder: SourceFolder) -> None:
        """Scan what was not scanned, as the mode says."""
        found: dict[Path, tuple[str, Sequence[ScanFinding]]] = {}
        for name, file in reading.files.items():
            tree = folder.take_tree(name)
            known = self._found.get(file.path)
            if known is not None and known[0] == file.digest:
                found[file.path] = known
            elif self._options.security != "off" and tree is not None:
                found[file.path] = file.digest, scan(tree, self._options.rules)
                self._tell(file.path, found[file.path][1])
        self._found = found

    def findings(self, reading: FolderReading) -> Mapping[str, Sequence[ScanFinding]]:
        """Return the findings, by the files' names without `.py`; files without a finding are left out."""
        known = ((file.stem, self._found.get(file.path, ("", ()))[1]) for file in reading.files.values())
        return {stem: findings for stem, findings in known if findings}

    def refused(self, reading: FolderReading) -> frozenset[str]:
        """Return the files that must not be imported: links that lead out of the folder, and in strict mode files with findings."""
        links = {name.removesuffix(".py") for name, fault in reading.faults.items() if fault.kind == "SecurityError"}
        return frozenset(self.findings(reading) if self._options.security == "strict" else ()) | links

    def _tell(self, path: Path, findings: Sequence[ScanFinding]) -> None:
        for finding in findings:
            _log.warning(
                "tool_security_violation file=%s line=%d what=%s mode=%s",
                path,
                finding.line,
                finding.what,
                self._options.security,
            )


def _load_errors(
    reading: FolderReading,
    findings: Mapping[str, Sequence[ScanFinding]],
    faults: Mapping[str, FileFault],
    served: "Served",
) -> list[ToolLoadError]:
    """Return what the scan found, what did not load, and what has no tools."""
    refused = findings.keys() - served.files.keys()
    faults = {**_without_tools(reading, served, {*faults, *refused}), **faults}

    def state(stem: str) -> InEffect:  # of a file: the same in all of its errors
        is_broken = stem in faults and faults[stem].kind != NO_TOOLS
        return served.version_of(stem, reading.files.get(f"{stem}.py"), is_broken=is_broken)

    errors = [_error(each, state(name.removesuffix(".py"))) for name, each in reading.faults.items()]
    for stem, fault in sorted(faults.items()):
        errors.append(_error(fault, "previous" if stem == REQUIREMENTS_FILE else state(stem)))
    for stem, found in findings.items():
        file = reading.files[f"{stem}.py"]
        what = ", ".join(f"{each.what} (line {each.line})" for each in found[:_MOST_FINDINGS])
        errors.append(_error(FileFault(file.path, "SecurityError", f"It {what}.", found[0].line), state(stem)))
    return errors


class Served:
    """Says which version of a file serves calls: `files` are those that a process has, `stems` those with tools in effect."""

    def __init__(self, files: Mapping[str, SourceFile], stems: Iterator[str]) -> None:
        self.files = files
        self.stems = frozenset(stems)

    def version_of(self, stem: str, current: SourceFile | None, *, is_broken: bool) -> InEffect:
        """`current` is the file as it is now, if it can be read; `is_broken`: it is not in effect as it stands."""
        served = self.files.get(stem)
        if served is None:
            return "none"
        if current is not None and served.digest == current.digest:
            return "current" if stem in self.stems or not is_broken else "none"
        return "previous" if stem in self.stems or not served.has_tools else "none"


def _without_tools(reading: FolderReading, served: Served, known: Collection[str]) -> Mapping[str, FileFault]:
    """Return why files serve nothing of which nothing else is known."""
    files = [each for each in reading.files.values() if each.stem not in served.stems and each.stem not in known]
    return {each.stem: fault for each in files if (fault := nothing_in(each)) is not None}


def _error(fault: FileFault, in_effect: InEffect) -> ToolLoadError:
    return load_error(str(fault.path), fault.kind, fault.message, in_effect=in_effect, line=fault.line)


class FolderHost(Host[HostedTool]):
    """A module whose `app` serves the folder; while its lifespan runs, the folder is watched."""

    def __init__(self, options: FolderOptions, *, listener: Listener | None = None) -> None:
        super().__init__(options, listener=listener, lifespan=self._running)
        named, self._untrusted = admitted(options.named, options.trusted)
        options = self._options = replace(options, named=named)
        self._folder = SourceFolder(options.folder)
        self._scanned = ScannedFiles(options)
        self._spare = SpareProcess(options.fence, options.secrets)
        self._packages = FilePackages(options.folder or Path(), options.packages, self._packages_ended)
        self._loader = Loader(options, self._packages, self._spare.take)
        self._generation: Generation | None = None
        self._reading: FolderReading | None = None
        self._is_outdated = False  # packages have come since
        self._retiring: dict[asyncio.Task[None], Generation] = {}
        self._loading = asyncio.Lock()
        self._reloading: set[asyncio.Task[None]] = set()

    @property
    def manifest(self) -> ModuleManifest:
        """The manifest of the served tools, with the load errors, and the source of each tool."""
        sources = None if self._generation is None else self._generation.sources() or None
        return super().manifest.model_copy(update={"sources": sources})

    async def reload(self, *, is_forced: bool = False) -> bool:
        """Serve the files as they are now; returns whether anything has changed.

        A folder that cannot be read leaves the served tools as they are.
        """
        async with self._loading:
            try:
                reading = await asyncio.to_thread(self._read)
            except FolderUnreadable as exc:
                self._reading = None
                return await self._tell(is_changed=self._set_unreadable(exc))
            is_outdated, self._is_outdated = self._is_outdated or self._packages.sets.is_due, False
            if not is_forced and not is_outdated and self._reading == reading:
                return False
            self._packages.sets.forget_failures(is_forced=is_forced)
            if is_forced:
                self._loader.forget_stopped()
            try:
                is_other = await self._serve(reading)
            except (HostFailed, OSError) as exc:
                _log.error("%s", exc)
                return await self._tell(is_changed=self._set_unreadable(exc))
            self._reading = reading
            return await self._tell(is_changed=is_other)

    def _set_unreadable(self, why: Exception) -> bool:
        fault = FileFault(self._folder.path, "FolderUnreadable", str(why))
        return self.set_load_errors([_error(fault, "previous")])

    def _read(self) -> FolderReading:
        reading = self._folder.read()
        self._scanned.scan_changed(reading, self._folder)
        return reading

    async def _serve(self, reading: FolderReading) -> bool:
        """Load the files to serve, and let them take over. Returns whether anything has changed."""
        served_before = self._generation.files if self._generation is not None else {}
        before: Files = {stem: each for stem, each in served_before.items() if "." not in stem}
        refused = self._scanned.refused(reading)
        kept = {stem: each for stem, each in before.items() if f"{stem}.py" in reading.faults and stem not in refused}
        files: Files = {each.stem: each for each in reading.files.values() if each.stem not in refused}
        allowed = {stem: each for stem, each in before.items() if stem not in refused}
        files, waiting = self._packages.given(reading, files)
        loaded = await self._loader.load({**kept, **files}, allowed, waiting)
        owners = {name: tool.stem for name, tool in self.tools.items()} or owners_in(self._options.owners_file)
        generation = Generation(loaded, self._options, self._spare.take, owners)
        try:
            await generation.start()
        except BaseException:
            await asyncio.shield(generation.aclose())
            raise
        await asyncio.to_thread(keep_owners, self._options.owners_file, generation)
        faults = {**self._untrusted, **generation.faults, **loaded.faults}
        served = Served(generation.files, (tool.stem for tool in generation.tools.values()))
        is_other = self.set_load_errors(_load_errors(reading, self._scanned.findings(reading), faults, served))
        is_other |= _offers(generation.tools) != _offers(self.tools)
        previous, self._generation, self.tools = self._generation, generation, generation.tools
        if previous is not None:
            previous.hand_over(generation)
            self._retire(previous)
        return is_other

    def _retire(self, generation: Generation) -> None:
        task = asyncio.ensure_future(generation.retire(self._options.longest_call_seconds))
        self._retiring[task] = generation
        task.add_done_callback(lambda task: self._retiring.pop(task, None))

    async def _tell(self, *, is_changed: bool) -> bool:
        if is_changed:
            await self.tell()
        return is_changed

    def _packages_ended(self) -> None:
        """Packages have come, or cannot be had: the files are loaded with what there is."""
        self._is_outdated = True
        task = asyncio.ensure_future(self.reload_safely())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _watch(self) -> None:
        if self._options.folder is None:
            return
        async for _ in file_changes(self._options.folder, _is_source, debounce_ms=self._options.debounce_ms):
            await self.reload_safely()

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Serve the folder meanwhile."""
        remove_abandoned_soon()
        working = [asyncio.ensure_future(self._watch())]
        try:
            await asyncio.sleep(0)  # so that it watches before the first reading: no change falls between both
            await self.reload()
            working.append(asyncio.ensure_future(self._packages.use.keep()))
            yield
        finally:
            ending: list[asyncio.Future[Any]] = [*working, *self._reloading]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, self._packages.sets.aclose(), return_exceptions=True)
            for generation in self._retiring.values():
                generation.hurry()  # and not cancelled: each has processes to end
            await asyncio.gather(*self._retiring, return_exceptions=True)
            if self._generation is not None:
                await self._generation.retire(_END_SECONDS)
            with contextlib.suppress(OSError):
                await self._spare.aclose()
            self._packages.use.aclose()


def _offers(tools: Mapping[str, HostedTool]) -> dict[str, Any]:
    return {name: tool.definition for name, tool in tools.items()}


def _is_source(path: str) -> bool:
    return path.endswith((".py", "requirements.txt"))


def admitted(names: Iterable[str], trusted: Collection[str]) -> tuple[list[str], Mapping[str, FileFault]]:
    """Return the names in a trusted namespace, and the faults of the others: `acme.toolsmith` is not in `acme.tools`."""
    good: list[str] = []
    faults: dict[str, FileFault] = {}
    for name in sorted(set(names)):
        if any(name == each or name.startswith(f"{each}.") for each in trusted):
            good.append(name)
        else:
            message = "It is in none of the namespaces in `trusted_tool_namespaces`, and was not imported."
            faults[name] = FileFault(Path(name), "UntrustedNamespace", message)
    return good, faults


class SpareProcess:
    """A process started in advance, in the running loop. `secrets`: see `ToolProcess`."""

    def __init__(self, fence: Fence, secrets: Secrets) -> None:
        self._fence = fence
        self._secrets = secrets
        self._next: asyncio.Task[ToolProcess] | None = None
        self._left: list[asyncio.Task[ToolProcess]] = []  # the caller was cancelled meanwhile
        self._is_closed = False

    async def take(self) -> ToolProcess:
        """Return the waiting process, or a new one, and start another for the next time. Raises `OSError` and `FenceMissing`."""
        waiting, self._next = self._next, None
        process = await self._started(waiting)
        if process.is_lost:  # it was ended meanwhile
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
