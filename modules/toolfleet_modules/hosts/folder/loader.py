"""Loads the files of a tool folder into a new process: a file that does not load is left at the version before, or out."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.source_files import FileFault, SourceFile
from toolfleet_modules.hosts.processes.load_plan import LoadOutcome, LoadPlan, SourceText
from toolfleet_modules.hosts.processes.tool_process import LoadStopped, ToolProcess

_log = logging.getLogger("toolfleet.host")

Files = dict[str, SourceFile]
"""By their names without `.py`."""


class HostFailed(Exception):
    """No process can be started. The message says why."""


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """A process with these files; `faults` has those that could not be used as they are now."""

    process: ToolProcess
    files: Mapping[str, SourceFile]
    outcome: LoadOutcome
    faults: Mapping[str, FileFault]


class Loader:
    """Starts processes with `make`."""

    def __init__(self, options: FolderOptions, make: Callable[[], Awaitable[ToolProcess]]) -> None:
        self._options = options
        self._make = make
        self._stopped: dict[
            str, FileFault
        ] = {}  # by digest: files that ended a process, or held it, are not tried again

    def plan_of(self, files: Files, *, is_lazy: bool = False) -> LoadPlan:
        """What a process is given."""
        options = self._options
        stems = [] if is_lazy else sorted(stem for stem, each in files.items() if each.has_tools)
        texts = {stem: SourceText(str(each.path), each.text) for stem, each in files.items()}
        return LoadPlan(options.name, texts, stems, options.threads, options.result_bytes)

    async def load(self, files: Files, before: Files) -> LoadedFiles:
        """Load `files`, and in the place of one that does not load the one of `before`. Raises `HostFailed`."""
        chosen = dict(files)
        faults = {stem: known for stem, each in files.items() if (known := self._stopped.get(each.digest)) is not None}
        for stem in faults:
            _step_back(chosen, stem, before)
        while True:
            process = await self._make()
            plan = self.plan_of(chosen)
            try:
                outcome = await process.load(plan, seconds=self._options.load_seconds)
            except LoadStopped as exc:
                await process.end()
                if exc.stem not in chosen:
                    raise HostFailed(f"The process for {self._options.folder} does not start: {exc}") from exc
                fault = FileFault(chosen[exc.stem].path, exc.kind, str(exc))
                self._stopped[chosen[exc.stem].digest] = fault
                faults.setdefault(exc.stem, fault)
                _step_back(chosen, exc.stem, before)
                continue
            back = self._note(outcome, chosen, before, faults)
            if not back:
                return LoadedFiles(process, chosen, outcome, faults)
            await process.end()
            for stem in back:
                chosen[stem] = before[stem]

    def _note(self, outcome: LoadOutcome, chosen: Files, before: Files, faults: dict[str, FileFault]) -> list[str]:
        """Note what is wrong; returns the files for which there is another version to load.

        Where a file is broken that others import, those others are not to be blamed: they are tried again with its version before.
        """
        broken = [stem for stem in outcome.faults if stem in chosen]
        helpers = [stem for stem in broken if not chosen[stem].has_tools and _has_other(chosen, stem, before)]
        blamed = helpers or broken
        for stem in blamed:
            kind, message, line = outcome.faults[stem]
            faults.setdefault(stem, FileFault(chosen[stem].path, kind, message, line))
        return [stem for stem in blamed if _has_other(chosen, stem, before)]


def _has_other(chosen: Files, stem: str, before: Files) -> bool:
    return stem in before and before[stem].digest != chosen[stem].digest


def _step_back(chosen: Files, stem: str, before: Files) -> None:
    if _has_other(chosen, stem, before):
        chosen[stem] = before[stem]
    else:
        del chosen[stem]
