"""Serves a folder of Python files as a module: what changes in a file is served a moment later, and nothing is away meanwhile."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolfleet_modules.hosts.folder.file_changes import file_changes
from toolfleet_modules.hosts.folder.file_packages import FilePackages, Files
from toolfleet_modules.hosts.folder.generation import Generation, keep_owners, owners_in
from toolfleet_modules.hosts.folder.load_errors import LoadErrors, Served
from toolfleet_modules.hosts.folder.loader import HostFailed, Loader
from toolfleet_modules.hosts.folder.named_tools import admitted
from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.scanned_files import ScannedFiles
from toolfleet_modules.hosts.folder.source_files import FolderReading, FolderUnreadable, SourceFolder
from toolfleet_modules.hosts.processes.hosted_tool import HostedTool
from toolfleet_modules.hosts.processes.spare import SpareProcess
from toolfleet_modules.hosts.serving.host import Host, Listener
from toolfleet_modules.hosts.serving.own_folder import remove_abandoned_soon
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.once.port import OnceStore

_log = logging.getLogger("toolfleet.host")

_END_SECONDS = 3.0  # for calls to end when the host does


class FolderHost(Host[HostedTool]):
    """A module, whose `app` serves the folder; while its lifespan runs, the folder is watched."""

    def __init__(
        self, options: FolderOptions, *, replies: OnceStore | None = None, listener: Listener | None = None
    ) -> None:
        super().__init__(options, replies=replies, listener=listener, lifespan=self._running)
        named, self._untrusted = admitted(options.named, options.trusted)
        options = self._options = replace(options, named=named)
        self._folder = SourceFolder(options.folder)
        self._scanned = ScannedFiles(options)
        self._errors = LoadErrors()
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
        """What is served now, and what is not."""
        found = {
            "load_errors": self._errors.now or None,
            "sources": (self._generation.sources() if self._generation is not None else []) or None,
        }
        return super().manifest.model_copy(update=found)

    async def reload(self, *, is_forced: bool = False) -> bool:
        """Serve the files as they are now; returns whether anything is different.

        A folder that cannot be read leaves what is served as it is.
        """
        async with self._loading:
            try:
                reading = await asyncio.to_thread(self._read)
            except FolderUnreadable as exc:
                self._reading = None
                return await self._tell(is_changed=self._errors.set_unreadable(self._folder.path, str(exc)))
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
                return await self._tell(is_changed=self._errors.set_unreadable(self._folder.path, str(exc)))
            self._reading = reading
            return await self._tell(is_changed=is_other)

    def _read(self) -> FolderReading:
        reading = self._folder.read()
        self._scanned.scan_changed(reading, self._folder)
        return reading

    async def _serve(self, reading: FolderReading) -> bool:
        """Load what is to be served, and let it take over. Returns whether it is anything else than before."""
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
        is_other = self._errors.renew(reading, self._scanned.findings(reading), faults, served)
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
        task = asyncio.ensure_future(self._reload_safely())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload_safely(self) -> None:
        try:
            await self.reload()
        except Exception as exc:  # noqa: BLE001 - whatever it is: the next change is looked at all the same
            _log.error("%s was not reloaded", self._options.name, exc_info=exc)

    async def _watch(self) -> None:
        if self._options.folder is None:
            return
        async for _ in file_changes(self._options.folder, debounce_ms=self._options.debounce_ms):
            await self._reload_safely()

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Serve the folder meanwhile."""
        remove_abandoned_soon()
        await self.reload()
        watching = asyncio.gather(self._watch(), self._packages.use.keep())
        try:
            yield
        finally:
            ending: list[asyncio.Future[Any]] = [watching, *self._reloading]
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
